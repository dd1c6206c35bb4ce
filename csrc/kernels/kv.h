// Rows of the KV cache, read as they are packed: scores of some queries with some keys, and sums of values. Queries,
// weights and results are floats in rows of whole blocks, zero where there is no value.

template <class F, bool whole>
struct Kv {
  using B = KvBlock<F>;
  using f32 = typename Isa::f32;
  static constexpr int tile = Isa::registers >= 32 ? 4 : 2;  // rows and tokens at once, as registers allow

  static FEWBIT_INLINE void read_row(const uint8_t* row, size_t first, size_t dim, f32* out) {
    B::template padded<whole>(row + first / 32 * B::bytes, dim - first,
                              [&](const uint8_t* p) FEWBIT_LAMBDA_INLINE { B::read(p, out); });
  }
  // What comes next is prefetched to the first-level cache, what comes later to the second. A core has few buffers for
  // lines under way; the rest is prefetched by hardware where lines are read in order, more of it from two
  // streams.
  static FEWBIT_INLINE void prefetch(KvPrefetch to_prefetch, size_t at, size_t bytes) {
    if (!to_prefetch.next) return;
    for (size_t c = (at + 127) / 128 * 128; c < at + bytes; c += 128) {
      __builtin_prefetch(to_prefetch.next + c, 0, 3);
      __builtin_prefetch(to_prefetch.next + c + 64, 0, 3);
      __builtin_prefetch(to_prefetch.later[0] + c / 2, 0, 2);
      __builtin_prefetch(to_prefetch.later[1] + c / 2, 0, 2);
    }
  }
  template <int Rows, int Tokens>
  static FEWBIT_INLINE void score(const float* q, size_t stride, const uint8_t* k, size_t row_bytes, size_t dim,
                                  float* s) {
    f32 acc[Rows * Tokens];
    for (auto& a : acc) a = Isa::zero();
    for (size_t d = 0; d < dim; d += 32) {
      f32 x[Tokens][B::vectors];
      for (int t = 0; t < Tokens; ++t) read_row(k + t * row_bytes, d, dim, x[t]);
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < B::vectors; ++v) {
          const f32 y = Isa::loadf(q + r * stride + d + v * Isa::L);
          for (int t = 0; t < Tokens; ++t) acc[r * Tokens + t] = Isa::fma(x[t][v], y, acc[r * Tokens + t]);
        }
      }
    }
    float sums[Rows * Tokens];
    if constexpr (Isa::can_reduce && Rows * Tokens == 16) {
      Own<F>::type::sums_of_16(acc, sums);
    } else {
      for (int i = 0; i < Rows * Tokens; ++i) sums[i] = Isa::sum(acc[i]);
    }
    for (int r = 0; r < Rows; ++r) std::memcpy(s + r * kKvTokens, sums + r * Tokens, Tokens * sizeof(float));
  }
  template <int Rows>
  static void score_rows(const float* q, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes, size_t dim,
                         KvPrefetch to_prefetch, float* s) {
    constexpr int some = Rows < tile ? tile * tile / Rows : tile;
    size_t t = 0;
    for (; t + some <= tokens; t += some) {
      prefetch(to_prefetch, t * row_bytes, some * row_bytes);
      score<Rows, some>(q, stride, k + t * row_bytes, row_bytes, dim, s + t);
    }
    for (; t < tokens; ++t) score<Rows, 1>(q, stride, k + t * row_bytes, row_bytes, dim, s + t);
  }
  // `Chunk` blocks of some rows of results, from value `first` on.
  template <int Rows, int Chunk>
  static FEWBIT_INLINE void add(const float* p, const uint8_t* v, size_t tokens, size_t row_bytes, size_t first,
                                size_t dim, KvPrefetch to_prefetch, float* out, size_t stride) {
    constexpr int vectors = Chunk * B::vectors;
    f32 acc[Rows][vectors];
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) acc[r][i] = Isa::loadf(out + r * stride + first + i * Isa::L);
    }
    for (size_t t = 0; t < tokens; ++t) {
      f32 x[vectors];
      prefetch(to_prefetch, (first / (32 * Chunk) * tokens + t) * (Chunk * B::bytes), Chunk * B::bytes);
      for (int c = 0; c < Chunk; ++c) read_row(v + t * row_bytes, first + 32 * c, dim, x + c * B::vectors);
      for (int r = 0; r < Rows; ++r) {
        const f32 w = Isa::splat(p[r * kKvTokens + t]);
        for (int i = 0; i < vectors; ++i) acc[r][i] = Isa::fma(x[i], w, acc[r][i]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) Isa::storef(out + r * stride + first + i * Isa::L, acc[r][i]);
    }
  }
  template <int Rows>
  static void add_rows(const float* p, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
                       KvPrefetch to_prefetch, float* out, size_t stride) {
    constexpr int most = Isa::registers >= 32 ? 2 : 1;  // blocks at once
    size_t first = 0;
    for (; first + 32 * most <= dim; first += 32 * most) {
      add<Rows, most>(p, v, tokens, row_bytes, first, dim, to_prefetch, out, stride);
    }
    for (; first < dim; first += 32) add<Rows, 1>(p, v, tokens, row_bytes, first, dim, to_prefetch, out, stride);
  }
};

// Calls f(rows, first) for up to `tile` rows at a time.
template <int tile, class Fn>
FEWBIT_INLINE void by_rows(size_t rows, Fn&& f) {
  size_t r = 0;
  if constexpr (tile == 4) {
    for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>{}, r);
  }
  for (; r + 2 <= rows; r += 2) f(std::integral_constant<int, 2>{}, r);
  if (r < rows) f(std::integral_constant<int, 1>{}, r);
}

// Calls f(Kv or KvNarrow) for rows that are whole blocks, or not.
template <class F, class Fn>
FEWBIT_INLINE void by_dim(size_t dim, Fn&& f) {
  constexpr bool narrow = KvBlock<F>::vectors > 4;
  if (KvBlock<F>::plain && dim % 32 != 0)
    f(std::conditional_t<narrow, KvNarrow<F, false>, Kv<F, false>>{});
  else
    f(std::conditional_t<narrow, KvNarrow<F, true>, Kv<F, true>>{});
}

// s[row][token] = q[row] . k[token], for at most kKvTokens tokens.
template <class F>
void kv_scores(const float* q, size_t rows, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes,
               size_t dim, KvPrefetch to_prefetch, float* s) {
  by_dim<F>(dim, [&]<class K>(K) {
    by_rows<K::tile>(rows, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      K::template score_rows<n>(q + r * stride, stride, k, tokens, row_bytes, dim, to_prefetch, s + r * kKvTokens);
    });
  });
}
// out[row] += sum of p[row][token] * v[token].
template <class F>
void kv_values(const float* p, size_t rows, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
               KvPrefetch to_prefetch, float* out, size_t stride) {
  by_dim<F>(dim, [&]<class K>(K) {
    by_rows<K::tile>(rows, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      K::template add_rows<n>(p + r * kKvTokens, v, tokens, row_bytes, dim, to_prefetch, out + r * stride, stride);
    });
  });
}
template <class F>
void kv_floats(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, KvPrefetch to_prefetch, float* out,
               size_t stride) {
  by_dim<F>(dim, [&]<class K>(K) {
    for (size_t t = 0; t < tokens; ++t) {
      K::prefetch(to_prefetch, t * row_bytes, row_bytes);
      for (size_t d = 0; d < dim; d += 32) {
        typename Isa::f32 v[K::B::vectors];
        K::read_row(x + t * row_bytes, d, dim, v);
        for (int i = 0; i < K::B::vectors; ++i) Isa::storef(out + t * stride + d + i * Isa::L, v[i]);
      }
    }
  });
}
