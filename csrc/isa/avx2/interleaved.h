// Interleaved rows, a lane for each of eight: see kernels/interleaved.h.

struct SideBySide : Grids {
  template <int shift, int bits, int dst>
  static FEWBIT_INLINE bytes take(bytes v) {
    if constexpr (bits == 8) return v;
    constexpr int down = shift - dst;
    if constexpr (down > 0) v = _mm256_srli_epi16(v, down > 0 ? down : 0);
    if constexpr (down < 0) v = _mm256_slli_epi16(v, down < 0 ? -down : 0);
    return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(((1 << bits) - 1) << dst)));
  }
  template <int byte, int shift, int dst>
  static FEWBIT_INLINE bytes take_bits(bytes v) {
    constexpr int four = byte * 0x01010101, in_lane = 0x04040404;
    const __m256i index = _mm256_setr_epi32(four, four + in_lane, four + 2 * in_lane, four + 3 * in_lane, four,
                                            four + in_lane, four + 2 * in_lane, four + 3 * in_lane);
    const __m256i bit = _mm256_set1_epi32(0x08040201 << shift);
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(v, index), bit), bit);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(1 << dst)));
  }
  template <int shift, int bits, int dst, bool is_signed>
  static FEWBIT_INLINE ints field(bytes v) {
    if constexpr (is_signed) return _mm256_srai_epi32(_mm256_slli_epi32(v, 32 - shift - bits), 32 - bits);
    constexpr int down = shift - dst;
    if constexpr (down > 0) v = _mm256_srli_epi32(v, down > 0 ? down : 0);
    if constexpr (down < 0) v = _mm256_slli_epi32(v, down < 0 ? -down : 0);
    return shift + bits == 32 && dst == 0 ? v : _mm256_and_si256(v, _mm256_set1_epi32(((1 << bits) - 1) << dst));
  }
  template <int zero>
  static FEWBIT_INLINE f32 less_to_floats(ints v) {
    return _mm256_cvtepi32_ps(zero ? _mm256_sub_epi32(v, _mm256_set1_epi32(zero)) : v);
  }
  template <bool high>
  static FEWBIT_INLINE f32 halves_of(bytes v) {
    constexpr int h = high ? 2 : 0;
    const __m256i index =
        _mm256_setr_epi8(h, h + 1, h + 4, h + 5, h + 8, h + 9, h + 12, h + 13, -1, -1, -1, -1, -1, -1, -1, -1, h, h + 1,
                         h + 4, h + 5, h + 8, h + 9, h + 12, h + 13, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, index), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  }
  template <Real r>
  static FEWBIT_INLINE f32 byte_real(ints v) {
    return r == Real::e8m0 ? e8m0(v) : half_ue4m3(v);
  }
  static FEWBIT_INLINE f32 e8m0(ints e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_subs_epu16(e, _mm256_set1_epi32(1)), 23));
  }
  static FEWBIT_INLINE f32 as_floats(bytes v) { return _mm256_castsi256_ps(v); }
  template <int shift>
  static FEWBIT_INLINE bytes joined(bytes a, bytes b) {
    return _mm256_or_si256(_mm256_srli_epi32(a, shift), _mm256_slli_epi32(b, 32 - shift));
  }
  template <int zero>
  static FEWBIT_INLINE bytes less(bytes v) {
    return zero ? _mm256_sub_epi8(v, _mm256_set1_epi8(zero)) : v;
  }
  // Bytes i and i + 1, as words.
  template <int i, bool is_signed>
  static FEWBIT_INLINE ints two_of(bytes v) {
    return is_signed ? high_bytes(pick<-1, i, -1, i + 1>(v)) : pick<i, -1, i + 1, -1>(v);
  }
};
