// What attention wants: plain numbers, blocks of 32, exponentials, sums of lanes, the Hadamard transform.

struct Attention : Rounding {
  // L numbers of a plain type in a row.
  template <Real r>
  static FEWBIT_INLINE f32 reals_at(const uint8_t* p) {
    if constexpr (r == Real::f32)
      return _mm512_loadu_ps(p);
    else if constexpr (r == Real::f16)
      return _mm512_cvtph_ps(load32(p));
    else
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
  }
  // One piece of 16 codes of a block.
  template <Run16 g>
  static FEWBIT_INLINE __m128i run(const uint8_t* p) {
    if constexpr (g.in_bits) {
      return _mm_maskz_set1_epi8(fewbit::load<uint16_t>(p + g.at), static_cast<char>(1 << g.dst));
    } else {
      return run_of_bytes<g>(p);
    }
  }
  // What 32 codes of four bits stand for: those in the low halves of 16 bytes, then those in the high ones.
  static FEWBIT_INLINE void nibbles(f32 table, const uint8_t* p, f32* out) {
    const __m512i v = _mm512_cvtepu8_epi32(load16(p));
    out[0] = _mm512_permutexvar_ps(v, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
  }
  template <bool is_signed>
  static FEWBIT_INLINE void widen16(__m128i v, f32* out) {
    out[0] = _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(v) : _mm512_cvtepu8_epi32(v));
  }
  static FEWBIT_INLINE f32 larger(f32 a, f32 b) { return _mm512_max_ps(a, b); }
  static FEWBIT_INLINE float top(f32 v) { return _mm512_reduce_max_ps(v); }
  static FEWBIT_INLINE bool any_positive(f32 v) { return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NLE_UQ) != 0; }
  // e to the power of numbers that are not positive, to about one unit in the last place.
  static FEWBIT_INLINE f32 exp(f32 x) {
    const f32 v = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    const f32 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504f)), 8);
    f32 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), v);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    f32 p = _mm512_set1_ps(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
      p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    }
    // No subnormal numbers: sums with them are slow. What is no number stays so.
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ), p, n);
  }
  // The Hadamard transform of the lanes, not normalized: a + b and a - b of lanes 1, 2, 4 and 8 apart.
  template <int apart>
  static FEWBIT_INLINE f32 plus_and_minus(f32 x, f32 swapped) {
    alignas(64) static constexpr auto signs = [] {
      std::array<float, 16> out{};
      for (int i = 0; i < 16; ++i) out[i] = (i & apart) != 0 ? -1 : 1;
      return out;
    }();
    return fma(x, loadf(signs.data()), swapped);
  }
  static FEWBIT_INLINE f32 hadamard(f32 x) {
    x = plus_and_minus<1>(x, _mm512_permute_ps(x, 0xB1));
    x = plus_and_minus<2>(x, _mm512_permute_ps(x, 0x4E));
    x = plus_and_minus<4>(x, _mm512_shuffle_f32x4(x, x, 0xB1));
    return plus_and_minus<8>(x, _mm512_shuffle_f32x4(x, x, 0x4E));
  }
  // The sums of the lanes of 16 vectors.
  static FEWBIT_INLINE f32 sums32(f32 a, f32 b) { return add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
  static FEWBIT_INLINE f32 sums64(f32 a, f32 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  static FEWBIT_INLINE f32 sums128(f32 a, f32 b) {
    return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  static FEWBIT_INLINE void sums_of_16(const f32* v, float* out) {
    f32 t[4];
    for (int i = 0; i < 4; ++i) t[i] = sums64(sums32(v[4 * i], v[4 * i + 1]), sums32(v[4 * i + 2], v[4 * i + 3]));
    _mm512_storeu_ps(out, sums128(sums128(t[0], t[1]), sums128(t[2], t[3])));
  }
  // The sums, and the largest, of the lanes of four vectors.
  static FEWBIT_INLINE void sums_of_4(const f32* v, float* out) {
    const f32 t = sums64(sums32(v[0], v[1]), sums32(v[2], v[3])), u = sums128(t, t);
    _mm_storeu_ps(out, _mm_add_ps(_mm512_castps512_ps128(u), _mm512_extractf32x4_ps(u, 1)));
  }
  static FEWBIT_INLINE void tops_of_4(const f32* v, float* out) {
    const auto by32 = [](f32 a, f32 b, f32& c) FEWBIT_LAMBDA_INLINE {
      c = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    };
    f32 a, b;
    by32(v[0], v[1], a);
    by32(v[2], v[3], b);
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    const f32 t = larger(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    const f32 u = larger(_mm512_shuffle_f32x4(t, t, 0x88), _mm512_shuffle_f32x4(t, t, 0xDD));
    _mm_storeu_ps(out, _mm_max_ps(_mm512_castps512_ps128(u), _mm512_extractf32x4_ps(u, 1)));
  }
};
