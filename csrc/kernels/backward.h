// Products by the transpose of a matrix: out[t][i] += sum over r of grad[t][r] * w[r][i], of rows that are decoded. A
// sum is made in the same order whatever the number of tokens.

template <int Tokens, int Vectors>
FEWBIT_INLINE void backward_block(const float* w, size_t rows, size_t stride, const float* grad, size_t grad_stride,
                                  float* out, size_t out_stride) {
  constexpr int L = Isa::L;
  typename Isa::f32 acc[Tokens][Vectors];
  for (auto& row : acc) {
    for (auto& a : row) a = Isa::zero();
  }
  for (size_t r = 0; r < rows; ++r, w += stride) {
    typename Isa::f32 values[Vectors];
    for (int v = 0; v < Vectors; ++v) values[v] = Isa::loadu(w + v * L);
    for (int t = 0; t < Tokens; ++t) {
      const auto g = Isa::splat(grad[t * grad_stride + r]);
      for (int v = 0; v < Vectors; ++v) acc[t][v] = Isa::fma(values[v], g, acc[t][v]);
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    float* to = out + t * out_stride;
    for (int v = 0; v < Vectors; ++v) Isa::storef(to + v * L, Isa::add(Isa::loadu(to + v * L), acc[t][v]));
  }
}

template <int Vectors>
static void backward_columns(const float* w, size_t rows, size_t stride, const float* grad, size_t grad_stride,
                             size_t tokens, float* out, size_t out_stride) {
  constexpr int most = Isa::registers >= 32 ? 6 : 3;
  size_t t = 0;
  for (; t + most <= tokens; t += most) {
    backward_block<most, Vectors>(w, rows, stride, grad + t * grad_stride, grad_stride, out + t * out_stride,
                                  out_stride);
  }
  for (; t < tokens; ++t) {
    backward_block<1, Vectors>(w, rows, stride, grad + t * grad_stride, grad_stride, out + t * out_stride, out_stride);
  }
}

static void backward_rows(const float* w, size_t rows, size_t stride, size_t columns, const float* grad,
                          size_t grad_stride, size_t tokens, float* out, size_t out_stride) {
  constexpr int vectors = Isa::registers >= 32 ? 4 : 2;
  constexpr size_t L = Isa::L;
  size_t i = 0;
  for (; i + vectors * L <= columns; i += vectors * L) {
    backward_columns<vectors>(w + i, rows, stride, grad, grad_stride, tokens, out + i, out_stride);
  }
  for (; i + L <= columns; i += L) {
    backward_columns<1>(w + i, rows, stride, grad, grad_stride, tokens, out + i, out_stride);
  }
  for (size_t t = 0; t < tokens && i < columns; ++t) {
    for (size_t c = i; c < columns; ++c) {
      float sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += grad[t * grad_stride + r] * w[r * stride + c];
      out[t * out_stride + c] += sum;
    }
  }
}
