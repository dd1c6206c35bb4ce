// Rows decoded to floats, times float activations. Slower than dot.h and as exact as f32 sums are.

template <class F>
void exact_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch) {
  for (size_t r = 0; r < rows; ++r) {
    decode_row<F>(w + r * at.row_bytes, k, at, scratch);
    for (size_t c = 0; c < columns; ++c) y[c * y_stride + r] = dot_floats(scratch, x + c * k, k);
  }
}
