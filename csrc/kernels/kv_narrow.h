// What kv.h does, for short vectors: a block of 32 values does not fit into the registers beside all else, a part of
// one does. While a row is read, the same row of what comes next is prefetched.

template <class F, bool whole>
struct KvNarrow {
  using B = KvBlock<F>;
  using I = typename Own<F>::type;
  using f32 = typename Isa::f32;
  static constexpr int tile = B::plain ? 4 : 2;  // rows at once, as registers allow
  static constexpr int tokens_with(int rows) { return B::plain && rows < 4 ? 8 : 4; }
  static constexpr int vectors_with(int rows) { return rows < 4 ? 16 / Isa::L : 8 / Isa::L; }

  static FEWBIT_INLINE void read_row(const uint8_t* row, size_t first, size_t dim, f32* out) {
    B::template padded<whole>(row + first / 32 * B::bytes, dim - first,
                              [&](const uint8_t* p) FEWBIT_LAMBDA_INLINE { B::read(p, out); });
  }
  static FEWBIT_INLINE void prefetch_at(const uint8_t* p) {
    for (int c = 0; c < B::bytes; c += 64) __builtin_prefetch(p + c, 0, 3);
  }
  static FEWBIT_INLINE void prefetch(KvPrefetch to_prefetch, size_t at, size_t bytes) {
    if (!to_prefetch.next) return;
    for (size_t c = 0; c < bytes; c += 64) __builtin_prefetch(to_prefetch.next + at + c, 0, 3);
  }
  // How far what comes next is from what is read.
  static FEWBIT_INLINE ptrdiff_t distance(const uint8_t* p, KvPrefetch to_prefetch) {
    return to_prefetch.next ? to_prefetch.next - p : 0;
  }

  template <int Rows, int Tokens, int part>
  static FEWBIT_INLINE void score_part(const float* q, size_t stride, const uint8_t* const* p, size_t left, f32* acc) {
    constexpr int vectors = vectors_with(Rows);
    f32 y[Rows][vectors];
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < vectors; ++v) y[r][v] = Isa::loadf(q + r * stride + (part * vectors + v) * Isa::L);
    }
    for (int t = 0; t < Tokens; ++t) {
      f32 x[vectors];
      B::template padded<whole>(
          p[t], left, [&](const uint8_t* at) FEWBIT_LAMBDA_INLINE { B::template read_part<vectors, part>(at, x); });
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < vectors; ++v) acc[r * Tokens + t] = Isa::fma(x[v], y[r][v], acc[r * Tokens + t]);
      }
    }
  }
  template <int Rows, int Tokens>
  static FEWBIT_INLINE void score(const float* q, size_t stride, const uint8_t* k, size_t row_bytes, size_t dim,
                                  ptrdiff_t next, float* s) {
    f32 acc[Rows * Tokens];
    const uint8_t* p[Tokens];
    for (auto& a : acc) a = Isa::zero();
    for (int t = 0; t < Tokens; ++t) p[t] = k + t * row_bytes;
    for (size_t d = 0; d < dim; d += 32, q += 32) {
      [&]<int... part>(std::integer_sequence<int, part...>) FEWBIT_LAMBDA_INLINE {
        (score_part<Rows, Tokens, part>(q, stride, p, dim - d, acc), ...);
      }(std::make_integer_sequence<int, B::vectors / vectors_with(Rows)>{});
      for (int t = 0; t < Tokens; ++t) {
        prefetch_at(p[t] + next);
        p[t] += B::bytes;
      }
    }
    float sums[Rows * Tokens];
    if constexpr (Rows * Tokens % 4 == 0) {
      for (int i = 0; i < Rows * Tokens; i += 4) Isa::sums_of_4(acc + i, sums + i);
    } else {
      for (int i = 0; i < Rows * Tokens; ++i) sums[i] = Isa::sum(acc[i]);
    }
    for (int r = 0; r < Rows; ++r) std::memcpy(s + r * kKvTokens, sums + r * Tokens, Tokens * sizeof(float));
  }
  template <int Rows>
  static void score_rows(const float* q, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes, size_t dim,
                         KvPrefetch to_prefetch, float* s) {
    constexpr int some = tokens_with(Rows);
    const ptrdiff_t next = distance(k, to_prefetch);
    size_t t = 0;
    for (; t + some <= tokens; t += some) {
      score<Rows, some>(q, stride, k + t * row_bytes, row_bytes, dim, next, s + t);
    }
    for (; t < tokens; ++t) score<Rows, 1>(q, stride, k + t * row_bytes, row_bytes, dim, next, s + t);
  }

  // 16 values of some rows of results.
  template <int Rows, int half>
  static FEWBIT_INLINE void add_half(const float* w, const uint8_t* v, size_t tokens, size_t row_bytes, size_t left,
                                     ptrdiff_t next, float* out, size_t stride) {
    constexpr int vectors = B::vectors / 2;
    f32 acc[Rows][vectors];
    out += 16 * half;
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) acc[r][i] = Isa::loadf(out + r * stride + i * Isa::L);
    }
    for (size_t t = 0; t < tokens; ++t, v += row_bytes, ++w) {
      f32 x[vectors];
      if constexpr (half == 0) prefetch_at(v + next);
      B::template padded<whole>(
          v, left, [&](const uint8_t* p) FEWBIT_LAMBDA_INLINE { B::template read_part<vectors, half>(p, x); });
      for (int r = 0; r < Rows; ++r) {
        for (int i = 0; i < vectors; ++i) acc[r][i] = I::fma_by(x[i], w[r * kKvTokens], acc[r][i]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) Isa::storef(out + r * stride + i * Isa::L, acc[r][i]);
    }
  }
  template <int Rows>
  static void add_rows(const float* w, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
                       KvPrefetch to_prefetch, float* out, size_t stride) {
    const ptrdiff_t next = distance(v, to_prefetch);
    for (size_t d = 0; d < dim; d += 32, v += B::bytes, out += 32) {
      add_half<Rows, 0>(w, v, tokens, row_bytes, dim - d, next, out, stride);
      add_half<Rows, 1>(w, v, tokens, row_bytes, dim - d, next, out, stride);
    }
  }
};
