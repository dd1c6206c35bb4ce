// A row of K or V to its place among tiles, straight from floats: what encode_row and to_tiled give, byte for byte.
// Only for formats with the simplest rules, and only for scales that need no care: packing the new token was a quarter
// of a short context's time (benchmarks/attention.py).

// The greatest of four vectors of magnitudes, as integers: what is not finite is above all.
FEWBIT_INLINE __m128i tops_of_4(const __m512i* v) {
  const auto by32 = [](__m512i a, __m512i b, __m512i& c) FEWBIT_LAMBDA_INLINE {
    c = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  __m512i a, b;
  by32(v[0], v[1], a);
  by32(v[2], v[3], b);
  const __m512i t = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i u = _mm256_max_epi32(_mm512_castsi512_si256(t), _mm512_extracti64x4_epi64(t, 1));
  return _mm_max_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

template <class F>
struct KvQuick {
  using T = KvTiled<F>;
  static constexpr bool can() {
    if constexpr (T::can())
      return T::per_byte == 1 ? F::rule == Rule::absmax && F::codes.zero == 0 && F::codebook.used == 0
                              : F::rule == Rule::absmax_signed && T::is_signed4;
    else
      return false;
  }
  static constexpr float least = 0x1p-100f, most = 0x1p15f;  // greatest magnitudes in a block; 0 is allowed, too

  // Up to four blocks: their scales, and the codes of each 16 values. False if a scale needs care.
  static FEWBIT_INLINE bool four_blocks(const float* x, size_t blocks, uint16_t* scales, __m512i* codes) {
    __m512 v[8];
    __m512i size[8], top[4];
    for (size_t i = 0; i < 8; ++i) {
      v[i] = i < 2 * blocks ? _mm512_loadu_ps(x + 16 * i) : _mm512_setzero_ps();
      size[i] = _mm512_castps_si512(_mm512_abs_ps(v[i]));
    }
    for (size_t b = 0; b < 4; ++b) top[b] = _mm512_max_epi32(size[2 * b], size[2 * b + 1]);
    const __m128i bits = tops_of_4(top);
    const __m128 greatest = _mm_castsi128_ps(bits);
    const __mmask8 some = _mm_cmpneq_epi32_mask(bits, _mm_setzero_si128());
    const __mmask8 usual = _mm_cmpgt_epi32_mask(bits, _mm_set1_epi32(static_cast<int>(f32_bits(least)))) &
                           _mm_cmplt_epi32_mask(bits, _mm_set1_epi32(static_cast<int>(f32_bits(most))));
    if (some & ~usual) return false;
    alignas(16) float first[4], back[4];
    __m128 d;
    if constexpr (T::per_byte == 1) {
      d = _mm_div_ps(greatest, _mm_set1_ps(127));
    } else {  // the first of those with the greatest magnitude
      alignas(16) int32_t each[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(each), bits);
      for (size_t b = 0; b < 4; ++b) {
        const __m512i same = _mm512_set1_epi32(each[b]);
        const uint32_t where = _mm512_cmpeq_epi32_mask(size[2 * b], same) |
                               static_cast<uint32_t>(_mm512_cmpeq_epi32_mask(size[2 * b + 1], same)) << 16;
        first[b] = b < blocks ? x[32 * b + static_cast<size_t>(__builtin_ctz(where))] : 0;
      }
      d = _mm_div_ps(_mm_load_ps(first), _mm_set1_ps(-8));
    }
    _mm_store_ps(back, _mm_maskz_div_ps(some, _mm_set1_ps(1), d));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(scales), _mm_cvtps_ph(d, 0));
    for (size_t i = 0; i < 8; ++i) {
      const __m512 y = _mm512_mul_ps(v[i], _mm512_set1_ps(back[i / 2]));
      if constexpr (T::per_byte == 1) {
        const __m512 sign = _mm512_and_ps(y, _mm512_set1_ps(-0.0f)), half = _mm512_set1_ps(0.49999997f);
        codes[i] = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_or_ps(sign, half)));
      } else {
        const __m512i c = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_set1_ps(8.5f)));
        codes[i] = _mm512_min_epi32(c, _mm512_set1_epi32(15));
      }
    }
    return true;
  }
  // 64 codes, one to a byte.
  static FEWBIT_INLINE __m512i bytes_of(const __m512i* c) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_packs_epi32(c[0], c[1]), b = _mm512_packs_epi32(c[2], c[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b));
  }
  // Bytes of a token, from number `byte` on: up to 64.
  static FEWBIT_INLINE void put_bytes(__m512i v, __mmask16 mine, size_t byte, size_t token, size_t dim,
                                      uint8_t* codes) {
    const __m512i rows = _mm512_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960);
    _mm512_mask_i32scatter_epi32(codes + T::key_place(byte, token, dim), mine, rows, v, 1);
  }
  // 128 values from `d` on, or the last 64.
  static FEWBIT_INLINE void put_key(const __m512i* c, size_t d, size_t token, size_t dim, uint8_t* codes) {
    const bool all = d + 64 < dim;
    if constexpr (T::per_byte == 1) {
      put_bytes(bytes_of(c), 0xFFFF, d, token, dim, codes);
      if (all) put_bytes(bytes_of(c + 4), 0xFFFF, d + 64, token, dim, codes);
    } else {
      const __m512i low = bytes_of(c), sign_mask = _mm512_set1_epi8(static_cast<char>(T::sign_mask));
      const __m512i high = all ? bytes_of(c + 4) : _mm512_castsi256_si512(_mm512_extracti64x4_epi64(low, 1));
      const __m512i two = _mm512_xor_si512(_mm512_or_si512(low, _mm512_slli_epi16(high, 4)), sign_mask);
      put_bytes(two, all ? 0xFFFF : 0xFF, d / 2, token, dim, codes);
    }
  }
  static FEWBIT_INLINE void put_value(const __m512i* c, size_t d, size_t token, size_t dim, uint8_t* codes) {
    const __mmask64 mine = 0x1111111111111111ull << token % 4;
    const __m128i left = _mm_cvtsi32_si128(static_cast<int>(token % 4 * 8));
    for (size_t b = 0; b < 4 && d + 32 * b < dim; ++b) {
      const __m512i low = c[2 * b], high = c[2 * b + 1];
      if constexpr (T::per_byte == 1) {
        _mm512_mask_storeu_epi8(codes + T::value_line(d / 32 + b, 0, token), mine, _mm512_sll_epi32(low, left));
        _mm512_mask_storeu_epi8(codes + T::value_line(d / 32 + b, 1, token), mine, _mm512_sll_epi32(high, left));
      } else {
        const __m512i sign_mask = _mm512_set1_epi32(T::sign_mask);
        const __m512i two = _mm512_xor_si512(_mm512_or_si512(low, _mm512_slli_epi32(high, 4)), sign_mask);
        _mm512_mask_storeu_epi8(codes + T::value_line(d / 32 + b, 0, token), mine, _mm512_sll_epi32(two, left));
      }
    }
  }
};

// False: nothing is known, the row has to be encoded. (What was written of it is written again.)
template <class F>
bool quick_to_tiled(const float* x, size_t token, size_t dim, bool is_value, uint8_t* slab) {
  using Q = KvQuick<F>;
  using T = KvTiled<F>;
  for (size_t d = 0; d < dim; d += 128) {
    const size_t blocks = dim - d < 128 ? (dim - d) / 32 : 4;
    __m512i codes[8];
    alignas(8) uint16_t scales[4];
    if (!Q::four_blocks(x + d, blocks, scales, codes)) return false;
    uint8_t* to = slab + T::codes_at(dim);
    if (is_value)
      Q::put_value(codes, d, token, dim, to);
    else
      Q::put_key(codes, d, token, dim, to);
    for (size_t b = 0; b < blocks; ++b) std::memcpy(slab + T::scale_at(d / 32 + b, token), scales + b, 2);
  }
  return true;
}
