// Attention of many queries as products of floats: tiles of some queries times some keys, which are transposed for it,
// and of weights times values. Each value that is read serves all rows of a tile.

struct FloatTile {
  static constexpr int vectors = Isa::L >= 8 ? 2 : 4, columns = vectors * Isa::L;
  static constexpr int rows = Isa::registers < 32 || vectors == 4 ? 6 : 8;
  static_assert(kKvTokens % columns == 0);

  // c[row] = or += the sum over i of a[row * row_step + i * step] * b[i], for `Rows` rows and `columns` columns.
  template <int Rows, size_t row_step, size_t step, bool adds>
  static FEWBIT_INLINE void multiply(const float* a, const float* b, size_t b_stride, size_t count, float* c,
                                     size_t c_stride) {
    typename Isa::f32 acc[Rows][vectors];
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < vectors; ++v) acc[r][v] = adds ? Isa::loadu(c + r * c_stride + v * Isa::L) : Isa::zero();
    }
    for (size_t i = 0; i < count; ++i, a += step, b += b_stride) {
      typename Isa::f32 x[vectors];
      for (int v = 0; v < vectors; ++v) x[v] = Isa::loadu(b + v * Isa::L);
      for (int r = 0; r < Rows; ++r) {
        const auto y = Isa::splat(a[r * row_step]);
        for (int v = 0; v < vectors; ++v) acc[r][v] = Isa::fma(x[v], y, acc[r][v]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < vectors; ++v) Isa::storef(c + r * c_stride + v * Isa::L, acc[r][v]);
    }
  }
  // Calls f(number of rows, first row): whole tiles, then what is left.
  template <class Fn>
  static FEWBIT_INLINE void by_tiles(size_t count, Fn&& f) {
    size_t r = 0;
    for (; r + rows <= count; r += rows) f(std::integral_constant<int, rows>{}, r);
    for (; r + 2 <= count; r += 2) f(std::integral_constant<int, 2>{}, r);
    if (r < count) f(std::integral_constant<int, 1>{}, r);
  }

  // The keys of a block, transposed, and behind them the queries: of each tile of rows [value][row].
  static size_t bytes(size_t rows, size_t pad) { return (kKvTokens + rows) * pad * sizeof(float); }
  static float* queries_of(void* scratch, size_t pad) { return static_cast<float*>(scratch) + kKvTokens * pad; }

  static void pack_queries(const float* q, size_t count, size_t pad, void* scratch) {
    float* out = queries_of(scratch, pad);
    by_tiles(count, [&]<int n>(std::integral_constant<int, n>, size_t first) {
      for (size_t d = 0; d < pad; ++d) {
        for (int r = 0; r < n; ++r) *out++ = q[(first + r) * pad + d];
      }
    });
  }
  // Tokens that are not there are zeros.
  static void transpose_keys(const float* k, size_t tokens, size_t pad, float* out) {
    for (size_t t = 0; t < kKvTokens; t += Isa::L) {
      alignas(64) float padded[Isa::L * Isa::L] = {};
      for (size_t d = 0; d < pad; d += Isa::L) {
        const float* from = k + t * pad + d;
        size_t stride = pad;
        if (t + Isa::L > tokens) {
          for (size_t i = 0; t + i < tokens; ++i)
            std::memcpy(padded + i * Isa::L, from + i * pad, Isa::L * sizeof(float));
          from = padded, stride = Isa::L;
        }
        Isa::transpose(reinterpret_cast<const uint8_t*>(from), stride * sizeof(float),
                       reinterpret_cast<uint8_t*>(out + d * kKvTokens + t), kKvTokens * sizeof(float));
      }
    }
  }
  static void scores(const float* k, size_t count, size_t tokens, size_t pad, void* scratch, float* s) {
    auto* keys = static_cast<float*>(scratch);
    transpose_keys(k, tokens, pad, keys);
    const float* q = queries_of(scratch, pad);
    by_tiles(count, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      for (size_t t = 0; t < tokens; t += columns) {
        multiply<n, 1, n, false>(q + r * pad, keys + t, kKvTokens, pad, s + r * kKvTokens + t, kKvTokens);
      }
    });
  }
  static void values(const float* p, size_t count, const float* v, size_t tokens, size_t pad, void*, float* out) {
    by_tiles(count, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      for (size_t d = 0; d < pad; d += columns) {
        multiply<n, kKvTokens, 1, true>(p + r * kKvTokens, v + d, pad, tokens, out + r * pad + d, pad);
      }
    });
  }
  static void nothing() {}
  static void with_nothing(void (*work)(void*), void* what) { work(what); }
};

constexpr MatrixAttention float_attention = {.most_rows = 96,
                                             .scratch_bytes = FloatTile::bytes,
                                             .pack_queries = FloatTile::pack_queries,
                                             .scores = FloatTile::scores,
                                             .values = FloatTile::values,
                                             .between = FloatTile::nothing,
                                             .with_units = FloatTile::with_nothing};
