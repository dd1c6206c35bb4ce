// Attention of many queries on matrix tiles (bf16), 32 tokens at a time. Rows come in whole tiles of 16, two at a time:
// what lies past the last row is computed too and looked at by nobody.

inline __m512i to_bf16(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

// Steps of 32 values that rows of `pad` values are multiplied in.
inline size_t attention_steps(size_t pad) { return (pad + 63) / 64 * 2; }

// Tiles of queries, of some keys and values, and of weights: memory for one piece of work.
struct TileScratch {
  uint16_t *queries, *keys, *values, *weights;

  static size_t whole(size_t rows) { return (rows + kMatrixRows - 1) / kMatrixRows * kMatrixRows; }
  TileScratch(void* memory, size_t rows, size_t pad) {
    const size_t wide = 32 * attention_steps(pad);
    queries = static_cast<uint16_t*>(memory);
    keys = queries + whole(rows) * wide;
    values = keys + 32 * wide;
    weights = values + 32 * pad;
  }
  static size_t bytes(size_t rows, size_t pad) {
    const size_t wide = 32 * attention_steps(pad);
    return (whole(rows) * (wide + 32) + 32 * (wide + pad)) * sizeof(uint16_t);
  }
};

// Queries as left tiles, [16 rows][step]: of every 64 values first the even ones, then the odd ones, as pack_tiles does
// it with K.
inline void pack_queries(const float* q, size_t rows, size_t pad, void* scratch) {
  uint16_t* out = TileScratch(scratch, rows, pad).queries;
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const size_t steps = attention_steps(pad);
  for (size_t r = 0; r < rows; ++r, q += pad) {
    uint16_t* to = out + r / 16 * steps * kTileElements + r % 16 * kTileValues;
    for (size_t at = 0; at < pad; at += 64, to += 2 * kTileElements) {
      __m512 v[4];
      for (size_t l = 0; l < 4; ++l) v[l] = at + 16 * l < pad ? _mm512_loadu_ps(q + at + 16 * l) : _mm512_setzero_ps();
      _mm512_store_si512(to,
                         to_bf16(_mm512_permutex2var_ps(v[0], even, v[1]), _mm512_permutex2var_ps(v[2], even, v[3])));
      _mm512_store_si512(to + kTileElements,
                         to_bf16(_mm512_permutex2var_ps(v[0], odd, v[1]), _mm512_permutex2var_ps(v[2], odd, v[3])));
    }
  }
}

// s[row][token] = q[row] . k[token], K as floats.
inline void tile_scores(const float* k, size_t rows, size_t tokens, size_t pad, void* scratch, float* s) {
  const TileScratch own(scratch, rows, pad);
  const uint16_t* q = own.queries;
  uint16_t* packed = own.keys;
  const size_t steps = attention_steps(pad), tiles = (tokens + 15) / 16;
  for (size_t t = 0; t < tiles; ++t) {
    const size_t count = tokens - 16 * t < 16 ? tokens - 16 * t : 16;
    keep_tiles_awake();
    for (size_t at = 0; at < pad; at += 64) {
      pack_tiles(k + 16 * t * pad + at, count, pad, pad - at, packed + (t * steps + at / 32) * kTileElements);
    }
  }
  constexpr size_t pitch = kKvTokens * sizeof(float);
  for (size_t r = 0; r < rows; r += 32) {
    const uint16_t* left = q + r / 16 * steps * kTileElements;
    for (size_t t = 0; t < tiles; ++t) {
      zero_results();
      for (size_t i = 0; i < steps; ++i) {
        _tile_loadd(6, packed + (t * steps + i) * kTileElements, 64);
        _tile_loadd(4, left + i * kTileElements, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_zero(4);
        _tile_loadd(4, left + (steps + i) * kTileElements, 64);
        _tile_dpbf16ps(1, 4, 6);
        zero_operands();
      }
      _tile_stored(0, s + r * kKvTokens + 16 * t, pitch);
      _tile_stored(1, s + (r + 16) * kKvTokens + 16 * t, pitch);
    }
  }
}

// V as right tiles, one for 16 of its columns: two tokens side by side.
inline void pack_values(const float* v, size_t tokens, size_t pad, uint16_t* out) {
  alignas(64) static constexpr auto order = [] {
    std::array<uint16_t, 32> o{};
    for (int i = 0; i < 32; ++i) o[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
    return o;
  }();
  const __m512i side_by_side = _mm512_load_si512(order.data());
  for (size_t d = 0; d < pad; d += 16) {
    if (d % 64 == 0) keep_tiles_awake();
    for (size_t t = 0; t < kKvTokens; t += 2, out += 32) {
      const __m512 a = t < tokens ? _mm512_loadu_ps(v + t * pad + d) : _mm512_setzero_ps();
      const __m512 b = t + 1 < tokens ? _mm512_loadu_ps(v + (t + 1) * pad + d) : _mm512_setzero_ps();
      _mm512_store_si512(out, _mm512_permutexvar_epi16(side_by_side, to_bf16(a, b)));
    }
  }
}

// out[row] += sum of p[row][token] * v[token], V as floats.
inline void tile_values(const float* p, size_t rows, const float* v, size_t tokens, size_t pad, void* scratch,
                        float* out) {
  const TileScratch own(scratch, rows, pad);
  uint16_t *packed_p = own.weights, *packed_v = own.values;
  pack_values(v, tokens, pad, packed_v);
  for (size_t r = 0; r < rows; ++r) {
    const __m512 low = _mm512_loadu_ps(p + r * kKvTokens);
    const __m512 high = tokens > 16 ? _mm512_loadu_ps(p + r * kKvTokens + 16) : _mm512_setzero_ps();
    _mm512_store_si512(packed_p + r * kTileValues, to_bf16(low, high));
  }
  const size_t pitch = pad * sizeof(float);
  for (size_t r = 0; r < rows; r += 32) {
    float *top = out + r * pad, *bottom = top + 16 * pad;
    _tile_loadd(4, packed_p + r * kTileValues, 64);
    _tile_loadd(5, packed_p + (r + 16) * kTileValues, 64);
    for (size_t d = 0; d < pad; d += 16) {
      _tile_loadd(6, packed_v + d / 16 * kTileElements, 64);
      _tile_loadd(0, top + d, pitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stored(0, top + d, pitch);
      _tile_zero(0);
      _tile_loadd(1, bottom + d, pitch);
      _tile_dpbf16ps(1, 5, 6);
      _tile_stored(1, bottom + d, pitch);
      _tile_zero(1);
      _tile_zero(6);
    }
  }
  _tile_zero(4);
  _tile_zero(5);
}

inline void keep_awake() { keep_tiles_awake(); }

inline void with_tiles(void (*work)(void*), void* what) {
  const TileUse use;
  work(what);
}

constexpr MatrixAttention tile_attention = {.most_rows = 128,
                                            .scratch_bytes = TileScratch::bytes,
                                            .pack_queries = pack_queries,
                                            .scores = tile_scores,
                                            .values = tile_values,
                                            .between = keep_awake,
                                            .with_units = with_tiles};
