// Attention of a few queries on int8 tiles, 32 tokens at a time, over K and V that are small integers times a scale for
// every 32: the integers go into tiles as they are. Queries and weights are rounded to 16 bits, in two bytes each: far
// less is lost than when K and V were packed. Rows of queries are taken in sets of four. Tiles take their time: the
// caller does other work between the products and what reads their results.

constexpr float kMostCode = 127 * 256;  // the first byte of the two stays in its range

template <class F>
struct KvCodes {
  using B = KvBlock<F>;
  static constexpr bool can() {
    if constexpr (B::can() && !B::plain)
      return !F::offset.present && F::scale.real == Real::f16 && F::codes.times == 1;
    else
      return false;
  }
  // Piece k of the codes of two blocks.
  template <int k>
  static FEWBIT_INLINE __m512i piece(const uint8_t* p, const uint8_t* q) {
    constexpr Run16 low = B::run(k, 0), high = B::run(k, 1);
    if constexpr (low.in_bits) {
      const auto bits = [](const uint8_t* from) FEWBIT_LAMBDA_INLINE {
        return uint64_t{load<uint16_t>(from + low.at)} | uint64_t{load<uint16_t>(from + high.at)} << 16;
      };
      return _mm512_maskz_set1_epi8(bits(p) | bits(q) << 32, static_cast<char>(1 << low.dst));
    } else {
      static_assert(low.at == high.at || low.at + 16 == high.at);
      __m512i v;
      if constexpr (low.at == high.at)
        v = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(Isa::load16(p + low.at)), 0xFF00,
                                        Isa::load16(q + low.at));
      else
        v = _mm512_inserti64x4(_mm512_castsi256_si512(Isa::load32(p + low.at)), Isa::load32(q + low.at), 1);
      if constexpr (low.bits == 8) return v;
      constexpr int a = (low.shift - low.dst) & 31, b = (high.shift - high.dst) & 31;
      v = _mm512_rorv_epi32(v, _mm512_setr_epi32(a, a, a, a, b, b, b, b, a, a, a, a, b, b, b, b));
      return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(((1 << low.bits) - 1) << low.dst)));
    }
  }
  static FEWBIT_INLINE __m512i integers(__m512i codes) {
    if constexpr (F::codebook.used > 0)
      return Isa::lookup<F::codebook, 0>(codes);
    else if constexpr (F::codes.zero != 0)
      return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(F::codes.zero)));
    else
      return codes;
  }
  static FEWBIT_INLINE __m512i two_blocks(const uint8_t* p, const uint8_t* q) {
    __m512i v = piece<0>(p, q);
    if constexpr (F::codes.pieces(0) > 1) v = Isa::either(v, piece<1>(p, q));
    return integers(v);
  }
  // The scales of some blocks of up to 32 rows, [block][row]; 0 past the last row.
  static FEWBIT_INLINE void scales(const uint8_t* x, size_t rows, size_t row_bytes, size_t blocks,
                                   float (*out)[kKvTokens]) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(places, _mm512_set1_epi32(static_cast<int>(row_bytes)));
    for (size_t first = 0; first < kKvTokens; first += 16) {
      const size_t left = rows > first ? rows - first : 0;
      const auto known = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
      const uint8_t* p = x + first * row_bytes + F::scale.at;
      for (size_t b = 0; b < blocks; ++b) {
        const __m512i v = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), known, at, p + b * F::bytes, 1);
        _mm512_store_ps(out[b] + first, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)));
      }
    }
  }
};

// What comes later is brought to the second-level cache, a little at a time, from two places in turns: an eighth of it
// with each of the products, a quarter with each of the steps around them. One of `parts` of it all.
template <int parts>
FEWBIT_INLINE void ask(CodeScratch& own) {
  auto& [keys, values, all, at, to] = own.ahead;
  for (to += all / parts; at < to; at += 64) __builtin_prefetch((at / 64 % 2 ? values : keys) + at / 128 * 64, 0, 2);
}

// Keys as left tiles, two blocks in one.
template <class F>
void key_codes(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) {
  const size_t blocks = (dim + 31) / 32;
  for (size_t t = 0; t < tokens; ++t) {
    const uint8_t* row = x + t * row_bytes;
    if (t % 8 == 0) keep_tiles_awake();
    for (size_t b = 0; b < blocks; b += 2) {
      const uint8_t* p = row + b * F::bytes;
      const __m512i codes = KvCodes<F>::two_blocks(p, b + 1 < blocks ? p + F::bytes : p);
      _mm512_store_si512(own.keys[b / 2][t], codes);
    }
  }
  own.keys_at = own.keys[0][0];
  KvCodes<F>::scales(x, tokens, row_bytes, blocks, own.key_scales);
  if (blocks % 2 != 0) std::memset(own.key_scales[blocks], 0, sizeof own.key_scales[0]);  // blocks are read in pairs
}

// 32 values of four tokens as a row of each of two right tiles: four tokens side by side.
template <class F>
FEWBIT_INLINE void four_tokens(const uint8_t* const* r, size_t at, int8_t* out) {
  using C = KvCodes<F>;
  if constexpr (KvBlock<F>::by_table) {  // two values in a byte: turned before they are taken apart
    alignas(64) static constexpr auto order = [] {
      std::array<uint8_t, 64> o{};
      for (int i = 0; i < 64; ++i) o[i] = static_cast<uint8_t>(i / 4 + i % 4 * 16);
      return o;
    }();
    const size_t codes = at + KvBlock<F>::run(0, 0).at;
    __m512i v = _mm512_broadcast_i32x4(Isa::load16(r[0] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0x00F0, Isa::load16(r[1] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0x0F00, Isa::load16(r[2] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0xF000, Isa::load16(r[3] + codes));
    v = _mm512_permutexvar_epi8(_mm512_load_si512(order.data()), v);
    const __m512i low = _mm512_set1_epi8(15);
    _mm512_store_si512(out, C::integers(_mm512_and_si512(v, low)));
    _mm512_store_si512(out + 1024, C::integers(_mm512_and_si512(_mm512_srli_epi16(v, 4), low)));
  } else {
    alignas(64) static constexpr auto order = [] {
      std::array<uint8_t, 128> o{};
      for (int i = 0; i < 128; ++i) o[i] = static_cast<uint8_t>(i / 4 + i % 2 * 32);
      return o;
    }();
    constexpr __mmask64 last = 0xCCCCCCCCCCCCCCCC;
    const __m512i first_two = C::two_blocks(r[0] + at, r[1] + at), last_two = C::two_blocks(r[2] + at, r[3] + at);
    for (int h = 0; h < 2; ++h) {
      const __m512i index = _mm512_load_si512(order.data() + 64 * h);
      const __m512i v = _mm512_permutexvar_epi8(index, first_two);
      _mm512_store_si512(out + h * 1024, _mm512_mask_permutexvar_epi8(v, last, index, last_two));
    }
  }
}
// Values as right tiles, two blocks in one. Those past the last are anything: their weights are 0.
template <class F>
void value_codes(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) {
  const size_t blocks = (dim + 31) / 32;
  const auto row = [&](size_t t) { return x + (t < tokens ? t : 0) * row_bytes; };
  for (size_t t = 0; t < kKvTokens && t < tokens; t += 4) {
    if (t % 8 == 0) keep_tiles_awake();
    const uint8_t* r[4] = {row(t), row(t + 1), row(t + 2), row(t + 3)};
    const size_t place = row_of_token(t);
    for (size_t b = 0, at = 0; b < blocks; ++b, at += F::bytes) {
      four_tokens<F>(r, at, own.values[b / 2][0] + (b % 2 * 8 + place) * 64);
    }
  }
  own.values_at = own.values[0][0];
  KvCodes<F>::scales(x, tokens, row_bytes, blocks, own.value_scales);
}

// The same for 32 tokens that lie as tiles want them: see kv_tiled.h. Codes of 8 bits stay where they are.
template <class F>
FEWBIT_INLINE void tiled_scales(const uint8_t* slab, size_t tokens, size_t dim, float (*out)[kKvTokens]) {
  const __mmask32 known = tokens >= 32 ? ~0u : (1u << tokens) - 1;
  const __m512 by = _mm512_set1_ps(KvTiled<F>::is_signed4 ? 0x1p-4f : 1);
  for (size_t b = 0; b < dim / 32; ++b) {
    const __m512i v = _mm512_maskz_loadu_epi16(known, slab + 64 * b);
    _mm512_store_ps(out[b], _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(v)), by));
    _mm512_store_ps(out[b] + 16, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)), by));
  }
}
// Signed codes of four bits stay in the first half of a byte: their scale is a 16th.
template <class F>
FEWBIT_INLINE void two_of_bytes(__m512i v, __m512i& low, __m512i& high) {
  if constexpr (KvTiled<F>::is_signed4) {
    const __m512i mask = _mm512_set1_epi8(-16);
    low = _mm512_and_si512(_mm512_slli_epi16(v, 4), mask);
    high = _mm512_and_si512(v, mask);
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    low = KvCodes<F>::integers(_mm512_and_si512(v, mask));
    high = KvCodes<F>::integers(_mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
  }
}
template <class F>
void key_tiles(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) {
  if constexpr (KvTiled<F>::per_byte == 1) {
    own.keys_at = reinterpret_cast<const int8_t*>(slab) + KvTiled<F>::codes_at(dim);
  } else {
    own.keys_at = own.keys[0][0];
    for (size_t t = 0; t < tokens; ++t) {
      const uint8_t* from = slab + KvTiled<F>::codes_at(dim) + t * dim / 2;
      __m512i low, high;
      for (size_t d = 0; d + 64 < dim; d += 128) {
        two_of_bytes<F>(_mm512_loadu_si512(from + d / 2), low, high);
        _mm512_store_si512(own.keys[d / 64][t], low);
        _mm512_store_si512(own.keys[d / 64 + 1][t], high);
      }
      if (dim % 128 != 0) {
        two_of_bytes<F>(_mm512_castsi256_si512(Isa::load32(from + dim / 2 - 32)), low, high);
        _mm512_store_si512(own.keys[dim / 64 - 1][t], _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
      }
    }
  }
  tiled_scales<F>(slab, tokens, dim, own.key_scales);
}
template <class F>
void value_tiles(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) {
  if constexpr (KvTiled<F>::per_byte == 1) {
    own.values_at = reinterpret_cast<const int8_t*>(slab) + KvTiled<F>::codes_at(dim);
  } else {
    own.values_at = own.values[0][0];
    for (size_t i = 0; i < dim / 64; ++i) {
      for (size_t row = 0; row < 16; ++row) {
        if (first_token_of_row(row % 8) >= tokens) continue;
        __m512i low, high;
        two_of_bytes<F>(_mm512_loadu_si512(slab + KvTiled<F>::codes_at(dim) + i * 1024 + row * 64), low, high);
        _mm512_store_si512(own.values[i][0] + row * 64, low);
        _mm512_store_si512(own.values[i][1] + row * 64, high);
      }
    }
  }
  tiled_scales<F>(slab, tokens, dim, own.value_scales);
}

// Keys and values of integers, as floats.
inline void key_floats(size_t tokens, size_t blocks, const CodeScratch& own, float* out, size_t stride) {
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t d = 0; d < 32 * blocks; d += 16) {
      const __m512i v = _mm512_cvtepi8_epi32(Isa::load16(own.keys_at + (d / 64 * kKvTokens + t) * 64 + d % 64));
      const __m512 by = _mm512_set1_ps(own.key_scales[d / 32][t]);
      _mm512_storeu_ps(out + t * stride + d, _mm512_mul_ps(_mm512_cvtepi32_ps(v), by));
    }
  }
}
inline void value_floats(size_t tokens, size_t blocks, const CodeScratch& own, float* out, size_t stride) {
  for (size_t t = 0; t < tokens; ++t) {
    const size_t row = row_of_token(t);
    const __m128i left = _mm_cvtsi32_si128(static_cast<int>(24 - t % 4 * 8));
    for (size_t d = 0; d < 32 * blocks; d += 16) {
      const int8_t* line = own.values_at + d / 64 * 2048 + d / 16 % 2 * 1024 + (d / 32 % 2 * 8 + row) * 64;
      const __m512i v = _mm512_srai_epi32(_mm512_sll_epi32(_mm512_loadu_si512(line), left), 24);
      const __m512 by = _mm512_set1_ps(own.value_scales[d / 32][t]);
      _mm512_storeu_ps(out + t * stride + d, _mm512_mul_ps(_mm512_cvtepi32_ps(v), by));
    }
  }
}

// Calls f(set, first row, rows) for every four rows.
template <class Fn>
FEWBIT_INLINE void by_sets(size_t rows, Fn&& f) {
  for (size_t set = 0; 4 * set < rows; ++set) f(set, 4 * set, rows - 4 * set < 4 ? rows - 4 * set : 4);
}

// Floats to integers of two bytes each, high * 256 + low: in the last 16 bits of 1.5 * 2^23 + x is the integer x. 128
// more is added, so that the first byte is rounded and the sign of the second turned. The bytes of 32 of them,
// `order`ed: all high ones, then all low ones. Word 2 * i is that of x[i], word 2 * i + 1 that of y[i].
FEWBIT_INLINE __m512i high_and_low(__m512 x, __m512 y, float by, __m512i order) {
  const __m512 base = _mm512_set1_ps(0x1.8p23f + 128), times = _mm512_set1_ps(by);
  const __m512i turn = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi8(-128), 1);
  const __m512i i = _mm512_castps_si512(_mm512_fmadd_ps(x, times, base));
  const __m512i j = _mm512_castps_si512(_mm512_fmadd_ps(y, times, base));
  const __m512i words = _mm512_mask_blend_epi16(0xAAAAAAAA, i, _mm512_slli_epi32(j, 16));
  return _mm512_xor_si512(_mm512_permutexvar_epi8(order, words), turn);
}
// Where the bytes of 32 words are that stand in the order of `value_of(i)`, 0 to 31.
template <class Fn>
constexpr std::array<uint8_t, 64> order_of_bytes(Fn&& value_of) {
  std::array<uint8_t, 64> o{};
  for (int i = 0; i < 64; ++i) {
    const int value = value_of(i % 32), word = value % 16 * 2 + value / 16;
    o[i] = static_cast<uint8_t>(word * 2 + (i < 32));
  }
  return o;
}

// What one unit of a row of queries stands for; not a number where the row is not finite.
inline float unit_of(const float* q, size_t pad) {
  __m512i top = _mm512_setzero_si512();  // magnitudes as integers: what is not finite is the greatest
  for (size_t d = 0; d < pad; d += 16) {
    top = _mm512_max_epi32(top, _mm512_castps_si512(_mm512_abs_ps(_mm512_loadu_ps(q + d))));
  }
  const float most = bits_f32(static_cast<uint32_t>(_mm512_reduce_max_epi32(top)));
  return most / kMostCode + (most - most);
}

// Dwords of four rows side by side: the 8 of high bytes and the 8 of low ones, as the left or right half of tile rows.
FEWBIT_INLINE void store_turned(const __m512i* v, int8_t* out) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  const __m512i turned[] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), _mm512_unpacklo_epi64(c, d),
                            _mm512_unpackhi_epi64(c, d)};
  for (int i = 0; i < 4; ++i) {  // dwords i, i + 4, then the low ones
    const __m512i two = _mm512_shuffle_i32x4(turned[i], turned[i], 0xD8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 64 * i), _mm512_castsi512_si256(two));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 64 * (i + 4)), _mm512_extracti64x4_epi64(two, 1));
  }
}
// Queries as right tiles, one for every two blocks. Columns: high bytes for the first block, low ones, the same for the
// second; four rows in each. The rest is 0 since it was allocated.
inline void pack_code_queries(const float* q, size_t rows, size_t pad, CodeQueries& out) {
  alignas(64) static constexpr auto as_they_are = order_of_bytes([](int i) { return i; });
  const __m512i order = _mm512_load_si512(as_they_are.data());
  by_sets(rows, [&](size_t set, size_t first, size_t count) {
    const float* row = q + first * pad;
    float *units = out.units[set], by[4];
    for (size_t r = 0; r < 4; ++r) {
      units[r] = r < count ? unit_of(row + r * pad, pad) : 0;
      by[r] = units[r] > 0 ? 1 / units[r] : 0;
    }
    for (size_t d = 0; d < pad; d += 32) {
      __m512i v[4];
      for (size_t r = 0; r < 4; ++r) {
        const float* x = row + (r < count ? r : 0) * pad + d;
        v[r] = high_and_low(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), by[r], order);
      }
      store_turned(v, out.tiles[set][d / 64] + d % 64 / 32 * (8 * 64 + 32));
    }
    if (pad % 64 != 0) {
      for (size_t i = 8; i < 16; ++i) _mm512_store_si512(out.tiles[set][pad / 64] + 64 * i, __m512i{});
    }
  });
}

// Up to four products, one after the other to hide how long each takes; tiles are not renamed. A shared tile meets one
// or two others, then the next one does; all lie one after the other. `right`: the shared tiles stand on the right.
struct CodeProducts {
  const int8_t *shared, *other;
  int32_t (*out)[16];
  size_t next_out;  // rows; the second other's come after 16
};
template <bool right>
FEWBIT_INLINE void multiply_codes(const CodeProducts& p, bool has_second, bool has_next) {
  _tile_loadd(4, p.shared, 64);
  _tile_loadd(6, p.other, 64);
  _tile_zero(0);
  if constexpr (right)
    _tile_dpbssd(0, 6, 4);
  else
    _tile_dpbssd(0, 4, 6);
  if (has_second) {
    _tile_loadd(7, p.other + 1024, 64);
    _tile_zero(1);
    if constexpr (right)
      _tile_dpbssd(1, 7, 4);
    else
      _tile_dpbssd(1, 4, 7);
  }
  if (has_next) {
    _tile_loadd(5, p.shared + 1024, 64);
    _tile_loadd(6, p.other + 2048, 64);
    _tile_zero(2);
    if constexpr (right)
      _tile_dpbssd(2, 6, 5);
    else
      _tile_dpbssd(2, 5, 6);
    if (has_second) {
      _tile_loadd(7, p.other + 3072, 64);
      _tile_zero(3);
      if constexpr (right)
        _tile_dpbssd(3, 7, 5);
      else
        _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, p.out, 64);
  if (has_second) _tile_stored(1, p.out + 16, 64);
  if (has_next) _tile_stored(2, p.out + p.next_out, 64);
  if (has_next && has_second) _tile_stored(3, p.out + p.next_out + 16, 64);
}

inline void multiply_keys(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own) {
  by_sets(rows, [&](size_t set, size_t, size_t) {
    for (size_t i = 0; 2 * i < blocks; i += 2) {
      if (i == 0) ask<8>(own);
      const CodeProducts p{q.tiles[set][i], own.keys_at + 2048 * i, own.key_results[set][i], kKvTokens};
      multiply_codes<true>(p, tokens > 16, 2 * i + 2 < blocks);
    }
  });
}

// What was multiplied for four tokens and two blocks: for each block [token][row], as floats.
FEWBIT_INLINE void join_bytes(const int32_t (*c)[16], __m512& first, __m512& second) {
  const auto joined = [](const int32_t (*two)[16], __m512i& out) FEWBIT_LAMBDA_INLINE {
    const __m512i x = _mm512_load_si512(two[0]), y = _mm512_load_si512(two[1]);
    const __m512i high = _mm512_shuffle_i32x4(x, y, 0x88), low = _mm512_shuffle_i32x4(x, y, 0xDD);
    out = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
  };
  __m512i a, b;
  joined(c, a);
  joined(c + 2, b);
  first = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(a, b, 0x88));
  second = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(a, b, 0xDD));
}
FEWBIT_INLINE __m512 four_times(const float* p) {  // p[i] in the four lanes of part i
  const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_load_ps(p)), each);
}
FEWBIT_INLINE void rows_of_tokens(const __m512* v, __m512* out) {  // [token][row] of four times four tokens, turned
  const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
  const __m512 a = _mm512_permutex2var_ps(v[0], low, v[1]), b = _mm512_permutex2var_ps(v[2], low, v[3]);
  const __m512 c = _mm512_permutex2var_ps(v[0], high, v[1]), d = _mm512_permutex2var_ps(v[2], high, v[3]);
  out[0] = _mm512_shuffle_f32x4(a, b, 0x44);
  out[1] = _mm512_shuffle_f32x4(a, b, 0xEE);
  out[2] = _mm512_shuffle_f32x4(c, d, 0x44);
  out[3] = _mm512_shuffle_f32x4(c, d, 0xEE);
}

// s[row][token] = q[row] . k[token]
inline void code_scores(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own, float* s) {
  by_sets(rows, [&](size_t set, size_t first, size_t count) {
    const __m512 unit = _mm512_broadcast_f32x4(_mm_load_ps(q.units[set]));
    for (size_t t = 0; t < tokens; t += 16) {
      __m512 v[4], turned[4];
      if (t == 0) keep_tiles_awake();
      for (size_t j = 0; j < 4; ++j) {
        ask<32>(own);
        __m512 sum = _mm512_setzero_ps();
        for (size_t i = 0; 2 * i < blocks; ++i) {
          __m512 even, odd;
          join_bytes(own.key_results[set][i] + t + 4 * j, even, odd);
          sum = _mm512_fmadd_ps(even, four_times(own.key_scales[2 * i] + t + 4 * j), sum);
          sum = _mm512_fmadd_ps(odd, four_times(own.key_scales[2 * i + 1] + t + 4 * j), sum);
        }
        v[j] = _mm512_mul_ps(sum, unit);
      }
      rows_of_tokens(v, turned);
      for (size_t r = 0; r < count; ++r) _mm512_storeu_ps(s + (first + r) * kKvTokens + t, turned[r]);
    }
  });
}

// Tokens 0 to 3, 16 to 19, 4 to 7 and so on: as rows of V, see row_of_token.
alignas(64) constexpr auto token_order = order_of_bytes([](int i) { return i / 8 * 4 + i % 4 + i / 4 % 2 * 16; });

// Weights times scales as left tiles, two blocks in one: rows of high bytes, then of low ones, for the first; then for
// the second, to the right of them. The rest stays 0.
FEWBIT_INLINE void pack_four_weights(const float* p, size_t rows, size_t tokens, size_t blocks, size_t set,
                                     CodeScratch& own) {
  const auto known = static_cast<__mmask16>(tokens > 16 ? 0xFFFF : 0);  // nobody wrote the second half, if not
  __m512 w[4][2];
  for (size_t r = 0; r < 4; ++r) {
    w[r][0] = r < rows ? _mm512_loadu_ps(p + r * kKvTokens) : _mm512_setzero_ps();
    w[r][1] = r < rows ? _mm512_maskz_loadu_ps(known, p + r * kKvTokens + 16) : _mm512_setzero_ps();
  }
  const __m512i order = _mm512_load_si512(token_order.data());
  for (size_t b = 0; b < blocks; ++b) {
    if (b < 4) ask<16>(own);
    if (b == 0) keep_tiles_awake();
    const __m512 d = _mm512_load_ps(own.value_scales[b]), e = _mm512_load_ps(own.value_scales[b] + 16);
    __m512 x[4][2], top[4];
    for (size_t r = 0; r < 4; ++r) {
      x[r][0] = _mm512_mul_ps(w[r][0], d);
      x[r][1] = _mm512_mul_ps(w[r][1], e);
      top[r] = _mm512_max_ps(_mm512_abs_ps(x[r][0]), _mm512_abs_ps(x[r][1]));
    }
    alignas(16) float most[4], by[4];
    Isa::tops_of_4(top, most);
    const __m128 tops = _mm_load_ps(most), all = _mm_set1_ps(kMostCode);
    _mm_store_ps(by, _mm_maskz_div_ps(_mm_cmp_ps_mask(tops, _mm_setzero_ps(), _CMP_GT_OQ), all, tops));
    constexpr int not_finite = 0x99;
    const auto bad = _mm512_fpclass_ps_mask(d, not_finite) | _mm512_fpclass_ps_mask(e, not_finite);
    const __m128 rest = _mm_set1_ps(bad ? __builtin_nanf("") : 0);  // rounding would hide it
    _mm_store_ps(own.units[set] + 4 * b, _mm_add_ps(_mm_div_ps(tops, all), rest));
    int8_t* to = own.weights[set][b / 2] + b % 2 * (8 * 64 + 32);
    for (size_t r = 0; r < rows; ++r) {
      const __m512i bytes = high_and_low(x[r][0], x[r][1], by[r], order);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + 64 * r), _mm512_castsi512_si256(bytes));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + 64 * (4 + r)), _mm512_extracti64x4_epi64(bytes, 1));
    }
  }
}
inline void pack_weights(const float* p, size_t rows, size_t tokens, size_t blocks, CodeScratch& own) {
  by_sets(rows, [&](size_t set, size_t first, size_t count) {
    pack_four_weights(p + first * kKvTokens, count, tokens, blocks, set, own);
  });
}
inline void multiply_values(size_t rows, size_t blocks, CodeScratch& own) {
  by_sets(rows, [&](size_t set, size_t, size_t) {
    for (size_t i = 0; 2 * i < blocks; i += 2) {
      if (i == 0) ask<8>(own);
      const CodeProducts p{own.weights[set][i], own.values_at + 2048 * i, own.value_results[set][2 * i], 32};
      multiply_codes<false>(p, true, 2 * i + 2 < blocks);
    }
  });
}
// out[row] += sum of p[row][token] * v[token]
inline void add_values(size_t rows, size_t blocks, CodeScratch& own, float* out, size_t stride) {
  by_sets(rows, [&](size_t set, size_t first, size_t count) {
    for (size_t i = 0; i < 2 * blocks; ++i) {  // 16 values
      const size_t block = i / 2;
      const auto* c = own.value_results[set][block / 2 * 2 + i % 2] + block % 2 * 8;
      if (i < 8) ask<32>(own);
      if (i == 4) keep_tiles_awake();
      for (size_t r = 0; r < count; ++r) {
        const __m512i high = _mm512_slli_epi32(_mm512_load_si512(c[r]), 8);
        const __m512 v = _mm512_cvtepi32_ps(_mm512_add_epi32(high, _mm512_load_si512(c[4 + r])));
        float* to = out + (first + r) * stride + 16 * i;
        const __m512 unit = _mm512_set1_ps(own.units[set][block * 4 + r]);
        _mm512_storeu_ps(to, _mm512_fmadd_ps(v, unit, _mm512_loadu_ps(to)));
      }
    }
  });
}

constexpr CodeAttention code_attention = {pack_code_queries, multiply_keys, code_scores,  pack_weights, multiply_values,
                                          add_values,        key_floats,    value_floats, with_tiles};
