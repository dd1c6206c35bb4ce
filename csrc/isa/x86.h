// What AVX2 and AVX-512 have in common: parts of a vector, in 16 and 32 bytes.

struct X86 {
  static FEWBIT_INLINE __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static FEWBIT_INLINE float half_from(uint16_t h) { return _cvtsh_ss(h); }
  template <Real r>
  static FEWBIT_INLINE float real(const uint8_t* p) {
    if constexpr (r == Real::f16)
      return _cvtsh_ss(fewbit::load<uint16_t>(p));
    else
      return read_real(r, p);
  }
  using f32x8 = __m256;
  template <Real r>
  static FEWBIT_INLINE f32x8 eight(const uint8_t* p) {
    if constexpr (r == Real::f32)
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    else if constexpr (r == Real::f16)
      return _mm256_cvtph_ps(load16(p));
    else {
      const __m128i bytes = _mm_cvtsi64_si128(fewbit::load<int64_t>(p));
      return _mm256_cvtepi32_ps(r == Real::i8 ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
    }
  }
  static FEWBIT_INLINE f32x8 splat8(float x) { return _mm256_set1_ps(x); }
  static FEWBIT_INLINE f32x8 mul8(f32x8 a, f32x8 b) { return _mm256_mul_ps(a, b); }
  static FEWBIT_INLINE __m128i either16(__m128i a, __m128i b) { return _mm_or_si128(a, b); }
  template <Codebook book>
  static FEWBIT_INLINE __m128i lookup16(__m128i v) {
    alignas(16) static constexpr Codebook table = book;
    return _mm_shuffle_epi8(load16(table.values), v);
  }
  template <Run16 g>
  static FEWBIT_INLINE __m128i run_of_bytes(const uint8_t* p) {
    __m128i v = load16(p + g.at);
    if constexpr (g.bits == 8) return v;
    constexpr int down = g.shift - g.dst;
    if constexpr (down > 0) v = _mm_srli_epi16(v, down > 0 ? down : 0);
    if constexpr (down < 0) v = _mm_slli_epi16(v, down < 0 ? -down : 0);
    return _mm_and_si128(v, _mm_set1_epi8(static_cast<char>(((1 << g.bits) - 1) << g.dst)));
  }
};
