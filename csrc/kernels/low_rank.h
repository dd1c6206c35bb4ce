// Low-rank terms of products: t = A x for some ranks of A, and y += B t for a panel of the rows of B. Sums of a row
// have the same order however many rows are taken together.

template <Real real>
struct LowRank {
  using f32 = typename Isa::f32;
  static constexpr size_t L = Isa::L, bytes = real_bytes(real);
  static constexpr int most = Isa::registers >= 32 ? 4 : Isa::registers > 0 ? 2 : 1;  // rows together

  template <int Ranks, int Rows>
  static FEWBIT_INLINE void dots(const uint8_t* a, size_t k, const float* x, const int32_t* rows, float* t,
                                 size_t stride) {
    f32 acc[Rows][Ranks];
    const float* from[Rows];
    for (int j = 0; j < Rows; ++j) {
      from[j] = x + static_cast<size_t>(rows[j]) * k;
      for (auto& one : acc[j]) one = Isa::zero();
    }
    size_t c = 0;
    for (; c + L <= k; c += L) {
      f32 w[Ranks];
      for (int i = 0; i < Ranks; ++i) w[i] = Isa::template reals_at<real>(a + (i * k + c) * bytes);
      for (int j = 0; j < Rows; ++j) {
        const f32 v = Isa::loadu(from[j] + c);
        for (int i = 0; i < Ranks; ++i) acc[j][i] = Isa::fma(w[i], v, acc[j][i]);
      }
    }
    for (int j = 0; j < Rows; ++j) {
      for (int i = 0; i < Ranks; ++i) {
        float rest = 0;
        for (size_t d = c; d < k; ++d) rest += read_real(real, a + (i * k + d) * bytes) * from[j][d];
        t[j * stride + i] = Isa::sum(acc[j][i]) + rest;
      }
    }
  }
  template <int Ranks>
  static void ranks_of_rows(const uint8_t* a, size_t k, const float* x, const int32_t* rows, size_t count, float* t,
                            size_t stride) {
    size_t j = 0;
    for (; j + most <= count; j += most) dots<Ranks, most>(a, k, x, rows + j, t + j * stride, stride);
    for (; j < count; ++j) dots<Ranks, 1>(a, k, x, rows + j, t + j * stride, stride);
  }
  static void down(const uint8_t* a, size_t ranks, size_t k, const float* x, const int32_t* rows, size_t count,
                   float* t, size_t stride) {
    size_t i = 0;
    for (; i + 4 <= ranks; i += 4) ranks_of_rows<4>(a + i * k * bytes, k, x, rows, count, t + i, stride);
    for (; i < ranks; ++i) ranks_of_rows<1>(a + i * k * bytes, k, x, rows, count, t + i, stride);
  }

  template <int Rows, int Vectors>
  static FEWBIT_INLINE void columns(const uint8_t* b, size_t r, size_t width, const float* t, float* const* y) {
    f32 acc[Rows][Vectors];
    for (int j = 0; j < Rows; ++j) {
      for (int v = 0; v < Vectors; ++v) acc[j][v] = Isa::loadu(y[j] + v * L);
    }
    for (size_t i = 0; i < r; ++i) {
      f32 w[Vectors];
      for (int v = 0; v < Vectors; ++v) w[v] = Isa::template reals_at<real>(b + (i * width + v * L) * bytes);
      for (int j = 0; j < Rows; ++j) {
        const f32 by = Isa::splat(t[j * r + i]);
        for (int v = 0; v < Vectors; ++v) acc[j][v] = Isa::fma(by, w[v], acc[j][v]);
      }
    }
    for (int j = 0; j < Rows; ++j) {
      for (int v = 0; v < Vectors; ++v) Isa::storef(y[j] + v * L, acc[j][v]);
    }
  }
  template <int Rows>
  static void panel(const uint8_t* b, size_t r, size_t width, const float* t, const int32_t* rows, float* y,
                    size_t stride) {
    size_t c = 0;
    const auto to = [&](int j) { return y + static_cast<size_t>(rows[j]) * stride + c; };
    float* at[Rows];
    for (; c + 4 * L <= width; c += 4 * L) {
      for (int j = 0; j < Rows; ++j) at[j] = to(j);
      columns<Rows, 4>(b + c * bytes, r, width, t, at);
    }
    for (; c + L <= width; c += L) {
      for (int j = 0; j < Rows; ++j) at[j] = to(j);
      columns<Rows, 1>(b + c * bytes, r, width, t, at);
    }
    for (; c < width; ++c) {
      for (int j = 0; j < Rows; ++j) {
        float sum = *to(j);
        for (size_t i = 0; i < r; ++i) sum += t[j * r + i] * read_real(real, b + (i * width + c) * bytes);
        *to(j) = sum;
      }
    }
  }
  static void up(const uint8_t* b, size_t r, size_t width, const float* t, const int32_t* rows, size_t count, float* y,
                 size_t stride) {
    size_t j = 0;
    for (; j + most <= count; j += most) panel<most>(b, r, width, t + j * r, rows + j, y, stride);
    for (; j < count; ++j) panel<1>(b, r, width, t + j * r, rows + j, y, stride);
  }
};

inline void low_rank_down(Real real, const uint8_t* a, size_t ranks, size_t k, const float* x, const int32_t* rows,
                          size_t count, float* t, size_t stride) {
  const auto down = real == Real::f32   ? LowRank<Real::f32>::down
                    : real == Real::f16 ? LowRank<Real::f16>::down
                                        : LowRank<Real::bf16>::down;
  down(a, ranks, k, x, rows, count, t, stride);
}

inline void low_rank_up(Real real, const uint8_t* b, size_t r, size_t width, const float* t, const int32_t* rows,
                        size_t count, float* y, size_t stride) {
  const auto up = real == Real::f32   ? LowRank<Real::f32>::up
                  : real == Real::f16 ? LowRank<Real::f16>::up
                                      : LowRank<Real::bf16>::up;
  up(b, r, width, t, rows, count, y, stride);
}
