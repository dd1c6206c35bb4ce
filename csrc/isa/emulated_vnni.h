// Dot products of bytes and words as several instructions, in the place of VNNI's: so that the kernels for AVX-512 can
// be tested on a machine without it. Built with FEWBIT_EMULATE=ON, see `make emulate`.

namespace vnni {

FEWBIT_INLINE __m512i add_words(__m512i sum, __m512i a, __m512i b) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}
// Even bytes, then odd ones, as words. No sum is cut short.
FEWBIT_INLINE __m512i add_bytes(__m512i sum, __m512i a, __m512i b) {
  const __m512i even =
      add_words(sum, _mm512_and_si512(a, _mm512_set1_epi16(0xff)), _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  return add_words(even, _mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
}

}  // namespace vnni

#define _mm512_dpbusd_epi32 vnni::add_bytes
#define _mm512_dpwssd_epi32 vnni::add_words
