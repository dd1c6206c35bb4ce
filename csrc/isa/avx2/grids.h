// Points of grids and base-3 digits, straight into vectors.

struct Grids : Pairs<Vectors> {
  // 32 bytes from points of four or eight.
  template <int width>
  static FEWBIT_INLINE bytes joined_points(const int8_t* const* at) {
    constexpr int half = 16 / width;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half_of_points<width>(at)), half_of_points<width>(at + half),
                                   1);
  }
  template <int width>
  static FEWBIT_INLINE __m128i half_of_points(const int8_t* const* at) {
    if constexpr (width == 8) {
      const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at[0]));
      return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64*>(at[1])));
    } else {
      const auto four = [&](int i) { return fewbit::load<int32_t>(reinterpret_cast<const uint8_t*>(at[i])); };
      __m128i v = _mm_insert_epi32(_mm_cvtsi32_si128(four(0)), four(1), 1);
      v = _mm_insert_epi32(v, four(2), 2);
      return _mm_insert_epi32(v, four(3), 3);
    }
  }
  // A bit of `signs` takes the sign of a code away.
  template <bool shift, int bias>
  static FEWBIT_INLINE bytes signed_codes(bytes v, uint64_t signs) {
    const bytes spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                          3, 3, 3, 3, 3, 3);
    const bytes bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    const bytes bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(signs)), spread), bit);
    const bytes is_set = _mm256_cmpeq_epi8(bits, bit);
    if constexpr (shift) {  // 8 * v + 1 + bias - 2 * bit; v is -1, 0 or 1
      const bytes eight = _mm256_sign_epi8(_mm256_set1_epi8(8), v);
      return _mm256_add_epi8(_mm256_add_epi8(eight, _mm256_set1_epi8(1 + bias)), _mm256_add_epi8(is_set, is_set));
    } else {
      return _mm256_add_epi8(_mm256_sub_epi8(_mm256_xor_si256(v, is_set), is_set), _mm256_set1_epi8(bias));
    }
  }
  // Base-3 digits: see AVX-512's.
  template <Trits t, int j>
  static FEWBIT_INLINE bytes digits(const uint8_t* p) {
    static_assert(t.parts[0].bytes == 32 && t.parts[0].digits == 5 && t.parts[1].bytes == 16 &&
                  t.parts[1].digits == 5 && t.parts[2].bytes == 4 && t.parts[2].digits == 4);
    alignas(32) static constexpr auto power = [] {
      std::array<uint16_t, 16> out{};
      for (int w = 0; w < 16; ++w) out[w] = static_cast<uint16_t>(power_of_3(32 * j + 2 * w));
      return out;
    }();
    bytes v;
    if constexpr (j < 5)
      v = load(p + t.parts[0].first);
    else
      v = _mm256_broadcastsi128_si256(load16(p + t.parts[1].first));
    if constexpr (j == 7) {
      v = _mm256_inserti128_si256(v, _mm_set1_epi32(fewbit::load<int32_t>(p + t.parts[2].first)), 1);
    }
    const bytes three = _mm256_set1_epi16(3), by = table(power.data());
    const bytes even = _mm256_mulhi_epu16(_mm256_mullo_epi16(_mm256_slli_epi16(v, 8), by), three);
    const bytes high = _mm256_and_si256(v, _mm256_set1_epi16(static_cast<short>(0xFF00)));
    const bytes odd = _mm256_mulhi_epu16(_mm256_mullo_epi16(high, by), three);
    return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
  }
};
