// Attention of a few queries on int8 tiles, 32 tokens at a time, over K and V that are small integers times a scale for
// every 32: the integers go into tiles as they are. Queries and weights are rounded to 16 bits, in two bytes each: far
// less is lost than when K and V were packed. Rows of queries are taken in sets of four. Tiles take their time: the
// caller does other work between the products and what reads their results.

constexpr float kMostCode = 127 * 256;  // the first byte of the two stays in its range

// Calls f(set, first row, rows, blocks) for every four rows. For what is usual, the last two are known while compiling.
template <class Fn>
FEWBIT_INLINE void by_sets(size_t rows, size_t blocks, Fn&& f) {
  constexpr auto two = std::integral_constant<size_t, 2>{};
  constexpr auto four = std::integral_constant<size_t, 4>{};
  for (size_t set = 0; 4 * set < rows; ++set) {
    const size_t first = 4 * set, count = rows - first < 4 ? rows - first : 4;
    if (count == 4 && blocks == 4)
      f(set, first, four, four);
    else if (count == 4 && blocks == 2)
      f(set, first, four, two);
    else
      f(set, first, count, blocks);
  }
}

// Floats to integers of two bytes each, high * 256 + low: in the last 16 bits of 1.5 * 2^23 + x is the integer x. 128
// more is added, so that the first byte is rounded and the sign of the second flipped. The bytes of 32 of them,
// `order`ed: all high ones, then all low ones. Word 2 * i is that of x[i], word 2 * i + 1 that of y[i].
FEWBIT_INLINE __m512i high_and_low(__m512 x, __m512 y, float by, __m512i order) {
  const __m512 base = _mm512_set1_ps(0x1.8p23f + 128), times = _mm512_set1_ps(by);
  const __m512i sign_mask = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi8(-128), 1);
  const __m512i i = _mm512_castps_si512(_mm512_fmadd_ps(x, times, base));
  const __m512i j = _mm512_castps_si512(_mm512_fmadd_ps(y, times, base));
  const __m512i words = _mm512_mask_blend_epi16(0xAAAAAAAA, i, _mm512_slli_epi32(j, 16));
  return _mm512_xor_si512(_mm512_permutexvar_epi8(order, words), sign_mask);
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

// A row of high bytes and one of low ones, four below it, of a block: the first of two fills rows 0 to 7 of a left tile
// on their left, the second rows 8 to 15 on their right. The rest is 0 since it was allocated.
FEWBIT_INLINE void store_high_and_low(__m512i bytes, size_t row, size_t block, int8_t (*tiles)[1024]) {
  int8_t* to = tiles[block / 2] + block % 2 * (8 * 64 + 32) + 64 * row;
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to + 4 * 64), _mm512_extracti64x4_epi64(bytes, 1));
}
// What one unit of each of four rows of queries stands for; not a number where the row is not finite.
FEWBIT_INLINE __m128 units_of_4(const float* const* q, size_t pad) {
  __m512i top[4] = {};
  for (size_t d = 0; d < pad; d += 16) {
    for (size_t r = 0; r < 4; ++r) {
      top[r] = _mm512_max_epi32(top[r], _mm512_castps_si512(_mm512_abs_ps(_mm512_loadu_ps(q[r] + d))));
    }
  }
  const __m128 most = _mm_castsi128_ps(tops_of_4(top));
  return _mm_add_ps(_mm_div_ps(most, _mm_set1_ps(kMostCode)), _mm_sub_ps(most, most));
}
// Queries as left tiles.
inline void pack_code_queries(const float* q, size_t rows, size_t pad, void* to) {
  auto& out = *static_cast<CodeQueries*>(to);
  alignas(64) static constexpr auto as_they_are = order_of_bytes([](int i) { return i; });
  const __m512i order = _mm512_load_si512(as_they_are.data());
  by_sets(rows, pad / 32, [&](size_t set, size_t first, auto count, auto blocks) FEWBIT_LAMBDA_INLINE {
    const float* row[4];
    for (size_t r = 0; r < 4; ++r) row[r] = q + (first + (r < count ? r : 0)) * pad;
    const __m128 units = units_of_4(row, 32 * blocks), none = _mm_setzero_ps();
    alignas(16) float by[4];
    _mm_store_ps(by, _mm_maskz_div_ps(_mm_cmp_ps_mask(units, none, _CMP_GT_OQ), _mm_set1_ps(1), units));
    _mm_store_ps(out.units[set], units);
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t r = 0; r < count; ++r) {
        const float* x = row[r] + 32 * b;
        const __m512i v = high_and_low(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), by[r], order);
        store_high_and_low(v, r, b, out.tiles[set]);
      }
    }
  });
}

// Up to four products, each stored after the next one has begun. A left tile meets one or two right ones, then the next
// one does; all lie one after the other, and so do their results.
FEWBIT_INLINE void multiply_codes(const int8_t* left, const int8_t* right, bool has_second, bool has_next,
                                  int32_t (*out)[16]) {
  _tile_loadd(4, left, 64);
  _tile_loadd(6, right, 64);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  if (has_second) {
    _tile_loadd(6, right + 1024, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 6);
  }
  _tile_stored(0, out, 64);
  if (has_next) {
    _tile_loadd(4, left + 1024, 64);
    _tile_loadd(6, right + 2048, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
  }
  if (has_second) _tile_stored(1, out + 16, 64);
  if (has_next && has_second) {
    _tile_loadd(6, right + 3072, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 6);
  }
  if (has_next) _tile_stored(0, out + 32, 64);
  if (has_next && has_second) _tile_stored(1, out + 48, 64);
  zero_operands();
}
// Row `row` of the high bytes' results of a block, with that of the low ones.
FEWBIT_INLINE __m512 joined(const int32_t (*results)[16], size_t block, size_t row) {
  const auto* c = results + block % 2 * 8 + row;
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(c[0]), 8), _mm512_load_si512(c[4])));
}

inline void multiply_keys(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own) {
  by_sets(rows, blocks, [&](size_t set, size_t, auto, auto blocks) FEWBIT_LAMBDA_INLINE {
    for (size_t i = 0; 2 * i < blocks; i += 2) {
      if (i == 0) prefetch<8>(own);
      multiply_codes(q.tiles[set][i], own.keys_at + 2048 * i, tokens > 16, 2 * i + 2 < blocks,
                     own.key_results[set][2 * i]);
    }
  });
}
// s[row][token] = q[row] . k[token]
inline void code_scores(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own, float* s) {
  by_sets(rows, blocks, [&](size_t set, size_t first, auto count, auto blocks) FEWBIT_LAMBDA_INLINE {
    for (size_t half = 0; 16 * half < tokens; ++half) {
      if (half == 0) keep_tiles_awake();
      for (size_t r = 0; r < count; ++r) {
        prefetch<32>(own);
        __m512 sum = _mm512_setzero_ps();
        for (size_t b = 0; b < blocks; ++b) {
          const __m512 scale = _mm512_load_ps(own.key_scales[b] + 16 * half);
          sum = _mm512_fmadd_ps(joined(own.key_results[set][b / 2 * 2 + half], b, r), scale, sum);
        }
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(q.units[set][r]));
        _mm512_storeu_ps(s + (first + r) * kKvTokens + 16 * half, sum);
      }
    }
  });
}

// Tokens 0 to 3, 16 to 19, 4 to 7 and so on: as rows of V, see row_of_token.
alignas(64) constexpr auto token_order = order_of_bytes([](int i) { return i / 8 * 4 + i % 4 + i / 4 % 2 * 16; });

// Weights times scales as left tiles.
template <class Rows, class Blocks>
FEWBIT_INLINE void pack_four_weights(const float* p, Rows rows, size_t tokens, Blocks blocks, size_t set,
                                     CodeScratch& own) {
  const auto known = static_cast<__mmask16>(tokens > 16 ? 0xFFFF : 0);  // nobody wrote the second half, if not
  __m512 w[4][2];
  for (size_t r = 0; r < 4; ++r) {
    w[r][0] = r < rows ? _mm512_loadu_ps(p + r * kKvTokens) : _mm512_setzero_ps();
    w[r][1] = r < rows ? _mm512_maskz_loadu_ps(known, p + r * kKvTokens + 16) : _mm512_setzero_ps();
  }
  const __m512i order = _mm512_load_si512(token_order.data());
  constexpr int greater_magnitude = 0b1011, not_finite = 0x99;
  for (size_t b = 0; b < blocks; ++b) {
    if (b < 4) prefetch<16>(own);
    if (b == 0) keep_tiles_awake();
    const __m512 d = _mm512_load_ps(own.value_scales[b]), e = _mm512_load_ps(own.value_scales[b] + 16);
    __m512 x[4][2], top[4];
    for (size_t r = 0; r < 4; ++r) {
      x[r][0] = _mm512_mul_ps(w[r][0], d);
      x[r][1] = _mm512_mul_ps(w[r][1], e);
      top[r] = _mm512_range_ps(x[r][0], x[r][1], greater_magnitude);
    }
    alignas(16) float most[4], by[4];
    Isa::tops_of_4(top, most);
    const __m128 tops = _mm_load_ps(most), all = _mm_set1_ps(kMostCode);
    _mm_store_ps(by, _mm_maskz_div_ps(_mm_cmp_ps_mask(tops, _mm_setzero_ps(), _CMP_GT_OQ), all, tops));
    const auto bad = _mm512_fpclass_ps_mask(d, not_finite) | _mm512_fpclass_ps_mask(e, not_finite);
    const __m128 rest = _mm_set1_ps(bad ? __builtin_nanf("") : 0);  // rounding would hide it
    _mm_store_ps(own.units[set] + 4 * b, _mm_add_ps(_mm_div_ps(tops, all), rest));
    for (size_t r = 0; r < rows; ++r) {
      store_high_and_low(high_and_low(x[r][0], x[r][1], by[r], order), r, b, own.weights[set]);
    }
  }
}
inline void pack_weights(const float* p, size_t rows, size_t tokens, size_t blocks, CodeScratch& own) {
  by_sets(rows, blocks, [&](size_t set, size_t first, auto count, auto blocks) FEWBIT_LAMBDA_INLINE {
    pack_four_weights(p + first * kKvTokens, count, tokens, blocks, set, own);
  });
}
inline void multiply_values(size_t rows, size_t blocks, CodeScratch& own) {
  by_sets(rows, blocks, [&](size_t set, size_t, auto, auto blocks) FEWBIT_LAMBDA_INLINE {
    for (size_t i = 0; 2 * i < blocks; i += 2) {
      if (i == 0) prefetch<8>(own);
      multiply_codes(own.weights[set][i], own.values_at + 2048 * i, true, 2 * i + 2 < blocks,
                     own.value_results[set][2 * i]);
    }
  });
}
// out[row] += sum of p[row][token] * v[token]
inline void add_values(size_t rows, size_t blocks, CodeScratch& own, float* out, size_t stride) {
  by_sets(rows, blocks, [&](size_t set, size_t first, auto count, auto blocks) FEWBIT_LAMBDA_INLINE {
    for (size_t i = 0; i < 2 * blocks; ++i) {  // 16 values
      const size_t b = i / 2;
      if (i < 8) prefetch<32>(own);
      if (i == 4) keep_tiles_awake();
      for (size_t r = 0; r < count; ++r) {
        const __m512 v = joined(own.value_results[set][b / 2 * 2 + i % 2], b, r);
        float* to = out + (first + r) * stride + 16 * i;
        _mm512_storeu_ps(to, _mm512_fmadd_ps(v, _mm512_set1_ps(own.units[set][4 * b + r]), _mm512_loadu_ps(to)));
      }
    }
  });
}

// The keys of a block beside the values of the one before it: while one waits for tiles the other has work to do.
inline void code_step(const IntegerStep& step) {
  auto& own = code_scratch();
  const auto& queries = *static_cast<const CodeQueries*>(step.queries);
  const KvBlockRows &keys = step.keys, &values = step.values;
  const size_t rows = step.rows, key_blocks = keys.pad / 32, value_blocks = values.pad / 32;
  if (keys.tokens) {
    own.to_prefetch = {keys.later, values.later, keys.tokens * (keys.row_bytes + values.row_bytes) / 2};
    step.k->integer_keys(step);
  }
  if (values.tokens) {
    step.v->integer_values(step);
    pack_weights(step.scores, rows, values.tokens, value_blocks, own);
  }
  if (keys.tokens) multiply_keys(queries, rows, keys.tokens, key_blocks, own);
  if (values.tokens) multiply_values(rows, value_blocks, own);
  if (keys.tokens) code_scores(queries, rows, keys.tokens, key_blocks, own, step.scores);
  if (values.tokens) add_values(rows, value_blocks, own, step.sums, values.pad);
}

inline size_t code_query_bytes(size_t) { return sizeof(CodeQueries); }

constexpr IntegerAttention code_attention = {.most_dim = 32 * kMostCodeBlocks,
                                             .least_page_tokens = kKvTokens,
                                             .is_exact = true,
                                             .query_bytes = code_query_bytes,
                                             .step = code_step,
                                             .with_units = with_tiles};
