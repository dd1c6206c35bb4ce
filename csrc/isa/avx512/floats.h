// Types, loads, floats, and what dot products are made of.

struct Floats : X86 {
  static constexpr int W = 64, L = 16;
  static constexpr int registers = 32, streams = 4, least_micro = 6, prefetch_far = 8192, prefetch_near = 1024;
  static constexpr bool can_stride = true, can_gather = true, can_transpose = true, can_reduce = true,
                        has_tables = true, can_interleave = true, can_transform = true, integer_kv = false,
                        dots_by_lane = false;
  using bytes = __m512i;
  using f32 = __m512;
  using ints = __m512i;

  static FEWBIT_INLINE __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static FEWBIT_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static FEWBIT_INLINE bytes either(bytes a, bytes b) { return _mm512_or_si512(a, b); }
  static FEWBIT_INLINE bytes flip(bytes v) { return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80))); }
  static FEWBIT_INLINE ints no_ints() { return _mm512_setzero_si512(); }
  static FEWBIT_INLINE ints same(const void* p) {  // four bytes in every lane
    return _mm512_set1_epi32(fewbit::load<int32_t>(static_cast<const uint8_t*>(p)));
  }
  static FEWBIT_INLINE ints all_32(int v) { return _mm512_set1_epi32(v); }
  // Bytes of every dword in another order, -1: zero.
  template <int a, int b, int c, int d>
  static FEWBIT_INLINE bytes pick(bytes v) {
    static constexpr auto index = picked_bytes<a, b, c, d>();
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(load16(index.data())));
  }
  static FEWBIT_INLINE ints high_bytes(bytes v) { return _mm512_srai_epi16(v, 8); }  // of words, with their signs
  static FEWBIT_INLINE ints two_products(bytes a, bytes b) { return _mm512_maddubs_epi16(a, b); }
  static FEWBIT_INLINE ints dot_words(ints a, ints b) { return _mm512_madd_epi16(a, b); }
  static FEWBIT_INLINE ints add_16(ints a, ints b) { return _mm512_add_epi16(a, b); }
  static FEWBIT_INLINE ints add_32(ints a, ints b) { return _mm512_add_epi32(a, b); }
  static FEWBIT_INLINE ints ones_16() { return _mm512_set1_epi16(1); }
  static FEWBIT_INLINE bytes sizes(bytes v) { return _mm512_abs_epi8(v); }
  static FEWBIT_INLINE bytes with_signs(bytes v, bytes of) {
    return _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(of), _mm512_setzero_si512(), v);
  }
  static FEWBIT_INLINE void store(uint8_t* p, bytes v) { _mm512_store_si512(p, v); }
  static FEWBIT_INLINE f32 to_floats(ints a) { return _mm512_cvtepi32_ps(a); }
  template <int part, bool is_signed>
  static FEWBIT_INLINE f32 widen(bytes v) {
    const __m128i quarter = _mm512_extracti32x4_epi32(v, part);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(quarter) : _mm512_cvtepu8_epi32(quarter));
  }
  static FEWBIT_INLINE f32 splat(float x) { return _mm512_set1_ps(x); }
  static FEWBIT_INLINE f32 only(f32 x, const uint32_t* ones) {  // the rest is 0
    return _mm512_and_ps(x, _mm512_load_ps(reinterpret_cast<const float*>(ones)));
  }
  static FEWBIT_INLINE f32 alternate(float a, float b) {
    return _mm512_mask_blend_ps(0xAAAA, _mm512_set1_ps(a), _mm512_set1_ps(b));
  }
  static FEWBIT_INLINE f32 zero() { return _mm512_setzero_ps(); }
  static FEWBIT_INLINE f32 fma(f32 a, f32 b, f32 c) { return _mm512_fmadd_ps(a, b, c); }
  static FEWBIT_INLINE f32 fnma(f32 a, f32 b, f32 c) { return _mm512_fnmadd_ps(a, b, c); }
  template <bool minus>
  static FEWBIT_INLINE f32 fma_odd(f32 a, f32 b, f32 c) {  // in the odd lanes only; minus: c - a * b
    return minus ? _mm512_mask3_fnmadd_ps(a, b, c, 0xAAAA) : _mm512_mask3_fmadd_ps(a, b, c, 0xAAAA);
  }
  static FEWBIT_INLINE f32 mul(f32 a, f32 b) { return _mm512_mul_ps(a, b); }
  static FEWBIT_INLINE f32 add(f32 a, f32 b) { return _mm512_add_ps(a, b); }
  template <std::array<int, 16> i>
  static FEWBIT_INLINE f32 spread(f32 v) {
    const __m512i lanes = _mm512_setr_epi32(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11],
                                            i[12], i[13], i[14], i[15]);
    return _mm512_permutexvar_ps(lanes, v);
  }
  static FEWBIT_INLINE float sum(f32 v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    float t[8];
    _mm256_storeu_ps(t, half);
    return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7]));
  }
  static FEWBIT_INLINE f32 loadf(const float* p) { return _mm512_load_ps(p); }
  static FEWBIT_INLINE f32 loadu(const float* p) { return _mm512_loadu_ps(p); }
  static FEWBIT_INLINE void storef(float* p, f32 v) { _mm512_storeu_ps(p, v); }
};
