// Floats to codes of eight bits, with the sums and orders that kernels want.

struct Rounding : SideBySide {
  static FEWBIT_INLINE bytes magnitudes(const float* x) {  // of 32 floats, the larger ones of two and two
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const bytes a = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), mask);
    return _mm512_max_epu32(a, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), mask));
  }
  static FEWBIT_INLINE bytes larger32(bytes a, bytes b) {
    return _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
  static FEWBIT_INLINE bytes larger64(bytes a, bytes b) {
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  // The bits of the largest magnitude of every 32 of 256 floats.
  static FEWBIT_INLINE void largest(const float* x, uint32_t* out) {
    const bytes low =
        larger64(larger32(magnitudes(x), magnitudes(x + 32)), larger32(magnitudes(x + 64), magnitudes(x + 96)));
    const bytes high = larger64(larger32(magnitudes(x + 128), magnitudes(x + 160)),
                                larger32(magnitudes(x + 192), magnitudes(x + 224)));
    const bytes t = _mm512_max_epu32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
    const bytes all = _mm512_max_epu32(t, _mm512_shuffle_i32x4(t, t, 0xB1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(all));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4), _mm512_extracti32x4_epi32(all, 2));
  }
  static FEWBIT_INLINE void quantize_16(const float* x, float by, int8_t* out) {
    const __mmask16 some = by == 0 ? 0 : 0xFFFF;
    const __m512i v = _mm512_maskz_cvtps_epi32(some, _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(v));
  }
  // The sums of every 16 of 256 codes.
  static FEWBIT_INLINE void sums(const int8_t* q, int* out) {
    const auto fours = [&](int j) FEWBIT_LAMBDA_INLINE {
      return add_bytes(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q + 64 * j));
    };
    const __m512i a = fours(0), b = fours(1), c = fours(2), d = fours(3);
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, all));
  }
  // Dwords of 256 bytes in another order: `at` gives, for each lane of `out`, the number of a dword.
  template <std::array<int, 64> at>
  static FEWBIT_INLINE void reorder(const int8_t* q, int8_t* out) {
    static constexpr auto index = at;
    const __m512i a = _mm512_load_si512(q), b = _mm512_load_si512(q + 64);
    const __m512i c = _mm512_load_si512(q + 128), d = _mm512_load_si512(q + 192);
    for (int v = 0; v < 4; ++v) {
      const __m512i i = _mm512_loadu_si512(index.data() + 16 * v);  // bit 5 tells in which pair
      const __mmask16 later = _mm512_test_epi32_mask(i, _mm512_set1_epi32(32));
      const __m512i low = _mm512_permutex2var_epi32(a, i, b);
      _mm512_store_si512(out + 64 * v, _mm512_mask_mov_epi32(low, later, _mm512_permutex2var_epi32(c, i, d)));
    }
  }
};
