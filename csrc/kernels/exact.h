// Rows decoded to floats, times float activations. Slower than dot.h and as exact as f32 sums are.

inline float dot_floats(const float* a, const float* b, size_t k) {
  constexpr int L = Isa::L;
  typename Isa::f32 acc[4] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
  size_t i = 0;
  for (; i + 4 * L <= k; i += 4 * L) {
    for (int c = 0; c < 4; ++c) acc[c] = Isa::fma(Isa::loadu(a + i + c * L), Isa::loadu(b + i + c * L), acc[c]);
  }
  float rest = 0;
  for (; i < k; ++i) rest += a[i] * b[i];
  return Isa::sum(Isa::add(Isa::add(acc[0], acc[1]), Isa::add(acc[2], acc[3]))) + rest;
}

template <class F>
void exact_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch) {
  for (size_t r = 0; r < rows; ++r) {
    decode_row<F>(w + r * at.row_bytes, k, at, scratch);
    for (size_t c = 0; c < columns; ++c) y[c * y_stride + r] = dot_floats(scratch, x + c * k, k);
  }
}
