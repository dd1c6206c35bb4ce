// Rows as floats, times float activations: slower than gemv.h and as exact as f32 sums are. The sum of a row and a
// column is made in the same order however many of them are taken together. Compiled once for each kind of float: what
// is packed, or has 8 bits, is decoded first, a few rows at a time.

template <Real real>
struct Exact {
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L;
  static constexpr size_t bytes = real_bytes(real);

  template <int Rows, int Columns>
  static FEWBIT_INLINE void block(const uint8_t* w, size_t row_bytes, size_t k, const float* x, float* y,
                                  size_t y_stride) {
    f32 acc[Rows][Columns];
    for (auto& row : acc) {
      for (auto& a : row) a = Isa::zero();
    }
    size_t i = 0;
    for (; i + L <= k; i += L) {
      f32 row[Rows];
      for (int r = 0; r < Rows; ++r) row[r] = Isa::template reals_at<real>(w + r * row_bytes + i * bytes);
      for (int c = 0; c < Columns; ++c) {
        const f32 v = Isa::loadu(x + c * k + i);
        for (int r = 0; r < Rows; ++r) acc[r][c] = Isa::fma(row[r], v, acc[r][c]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < Columns; ++c) {
        float rest = 0;
        for (size_t j = i; j < k; ++j) rest += read_real(real, w + r * row_bytes + j * bytes) * x[c * k + j];
        y[c * y_stride + r] = Isa::sum(acc[r][c]) + rest;
      }
    }
  }
  template <int Rows>
  static void some_rows(const uint8_t* w, size_t row_bytes, size_t k, const float* x, size_t columns, float* y,
                        size_t y_stride) {
    constexpr int most = Isa::registers >= 32 ? 4 : 2;
    size_t c = 0;
    for (; c + most <= columns; c += most) block<Rows, most>(w, row_bytes, k, x + c * k, y + c * y_stride, y_stride);
    for (; c < columns; ++c) block<Rows, 1>(w, row_bytes, k, x + c * k, y + c * y_stride, y_stride);
  }
};

using DecodeRow = void (*)(const uint8_t* row, size_t k, const Layout& at, float* out);

// `decode`: null where rows are read where they lie.
template <Real real>
FEWBIT_ONCE void exact_product(DecodeRow decode, const uint8_t* w, size_t rows, size_t k, const Layout& at,
                               const float* x, size_t columns, float* y, size_t y_stride, float* scratch) {
  using E = Exact<real>;
  constexpr size_t kept = size_t{1} << 20;  // bytes of columns that stay in the second-level cache
  const size_t each = std::max<size_t>(kept / (k * sizeof(float) + 1), 4);
  for (size_t c = 0; c < columns; c += each) {
    const size_t some = std::min(each, columns - c);
    for (size_t r = 0; r < rows; r += kExactRows) {
      const size_t count = std::min(kExactRows, rows - r);
      const uint8_t* from = w + r * at.row_bytes;
      size_t row_bytes = at.row_bytes;
      if (decode) {
        for (size_t i = 0; i < count; ++i) decode(from + i * at.row_bytes, k, at, scratch + i * k);
        from = reinterpret_cast<const uint8_t*>(scratch);
        row_bytes = k * sizeof(float);
      }
      float* to = y + c * y_stride + r;
      if (count == kExactRows) {
        E::template some_rows<kExactRows>(from, row_bytes, k, x + c * k, some, to, y_stride);
      } else {
        for (size_t i = 0; i < count; ++i) {
          E::template some_rows<1>(from + i * row_bytes, row_bytes, k, x + c * k, some, to + i, y_stride);
        }
      }
    }
  }
}

template <class F>
void exact_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch) {
  if constexpr (is_plain<F>() && F::bytes > 1)
    exact_product<F::real>(nullptr, w, rows, k, at, x, columns, y, y_stride, scratch);
  else
    exact_product<Real::f32>(decode_row<F>, w, rows, k, at, x, columns, y, y_stride, scratch);
}
