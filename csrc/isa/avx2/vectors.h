// What kernels of one row at a time want, but for dot products: isa/pairs.h.

struct Vectors : X86 {
  static constexpr int W = 32, L = 8, micro_columns = 3, micro_sets = 2;
  static constexpr int registers = 16, streams = 2, least_micro = 12, prefetch_far = 8192, prefetch_near = 1024;
  static constexpr bool can_stride = false, can_gather = false, can_transpose = false, can_reduce = false,
                        has_tables = false, can_interleave = true, can_transform = false, integer_kv = false,
                        dots_by_lane = false;
  using bytes = __m256i;
  using f32 = __m256;
  using ints = __m256i;

  static FEWBIT_INLINE __m256i load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static FEWBIT_INLINE __m256i table(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  template <int a, int b>
  static FEWBIT_INLINE bytes two(const uint8_t* p) {  // 16 bytes from each of two addresses
    if constexpr (b == a + 16)
      return load(p + a);
    else if constexpr (b == a)
      return _mm256_broadcastsi128_si256(load16(p + a));
    else
      return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p + a)), load16(p + b), 1);
  }
  template <Lanes g, bool unshifted>
  static FEWBIT_INLINE bytes lanes(const uint8_t* p) {
    const bytes v = two<g.at[0], g.at[1]>(p);
    constexpr int a = g.shift[0] - g.dst, b = g.shift[1] - g.dst;
    if constexpr (g.bits == 8) return v;
    const bytes mask = _mm256_set1_epi8(static_cast<char>(((1 << g.bits) - 1) << g.dst));
    if constexpr (a == b && a >= 0)
      return _mm256_and_si256(_mm256_srli_epi16(v, a), mask);
    else if constexpr (a == b)
      return _mm256_and_si256(_mm256_slli_epi16(v, -a), mask);
    else {
      static_assert(a >= 0 && b >= 0);
      return _mm256_and_si256(_mm256_srlv_epi32(v, _mm256_setr_epi32(a, a, a, a, b, b, b, b)), mask);
    }
  }
  // Even and odd bytes apart: each is multiplied so that its bits come to stand at bit 8, then put in place.
  template <Scatter g>
  static FEWBIT_INLINE bytes scattered(const uint8_t* p) {
    alignas(32) static constexpr auto index = [] {
      std::array<uint8_t, 32> t{};
      for (int i = 0; i < 32; ++i) t[i] = g.byte[i];
      return t;
    }();
    alignas(32) static constexpr auto even = [] {
      std::array<int16_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = static_cast<int16_t>(1 << (8 - g.shift[2 * i]));
      return t;
    }();
    alignas(32) static constexpr auto odd = [] {
      std::array<int16_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = static_cast<int16_t>(1 << (8 - g.shift[2 * i + 1]));
      return t;
    }();
    const bytes v = _mm256_shuffle_epi8(two<g.window[0], g.window[1]>(p), load(index.data()));
    const bytes mask = _mm256_set1_epi16(static_cast<short>(((1 << g.bits) - 1) << 8));
    const bytes lo = _mm256_mullo_epi16(_mm256_and_si256(v, _mm256_set1_epi16(255)), table(even.data()));
    const bytes hi = _mm256_mullo_epi16(_mm256_srli_epi16(v, 8), table(odd.data()));
    return _mm256_or_si256(_mm256_srli_epi16(_mm256_and_si256(lo, mask), 8 - g.dst),
                           _mm256_slli_epi16(_mm256_and_si256(hi, mask), g.dst));
  }
  static FEWBIT_INLINE bytes either(bytes a, bytes b) { return _mm256_or_si256(a, b); }
  template <Codebook book, int bias>
  static FEWBIT_INLINE bytes lookup(bytes v) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(lookup_table<book, bias>.data())), v);
  }
  static FEWBIT_INLINE bytes flip(bytes v) { return _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(0x80))); }
  static FEWBIT_INLINE ints no_ints() { return _mm256_setzero_si256(); }
  static FEWBIT_INLINE ints same(const void* p) {  // four bytes in every lane
    return _mm256_set1_epi32(fewbit::load<int32_t>(static_cast<const uint8_t*>(p)));
  }
  static FEWBIT_INLINE ints all_32(int v) { return _mm256_set1_epi32(v); }
  // Bytes of every dword in another order, -1: zero.
  template <int a, int b, int c, int d>
  static FEWBIT_INLINE bytes pick(bytes v) {
    static constexpr auto index = picked_bytes<a, b, c, d>();
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(load16(index.data())));
  }
  static FEWBIT_INLINE ints high_bytes(bytes v) { return _mm256_srai_epi16(v, 8); }  // of words, with their signs
  static FEWBIT_INLINE ints two_products(bytes a, bytes b) { return _mm256_maddubs_epi16(a, b); }
  static FEWBIT_INLINE ints dot_words(ints a, ints b) { return _mm256_madd_epi16(a, b); }
  static FEWBIT_INLINE ints add_16(ints a, ints b) { return _mm256_add_epi16(a, b); }
  static FEWBIT_INLINE ints add_32(ints a, ints b) { return _mm256_add_epi32(a, b); }
  static FEWBIT_INLINE ints ones_16() { return _mm256_set1_epi16(1); }
  static FEWBIT_INLINE bytes sizes(bytes v) { return _mm256_abs_epi8(v); }
  static FEWBIT_INLINE bytes with_signs(bytes v, bytes of) { return _mm256_sign_epi8(v, of); }
  static FEWBIT_INLINE void transpose(const uint8_t* in, size_t stride, uint8_t* out, size_t out_stride) {
    __m256i r[8], t[8];
    for (size_t i = 0; i < 8; ++i) r[i] = load(in + i * stride);
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int h = 0; h < 2; ++h) {
      r[4 * h] = _mm256_unpacklo_epi64(t[4 * h], t[4 * h + 2]);
      r[4 * h + 1] = _mm256_unpackhi_epi64(t[4 * h], t[4 * h + 2]);
      r[4 * h + 2] = _mm256_unpacklo_epi64(t[4 * h + 1], t[4 * h + 3]);
      r[4 * h + 3] = _mm256_unpackhi_epi64(t[4 * h + 1], t[4 * h + 3]);
    }
    for (size_t i = 0; i < 8; ++i) {
      const __m256i a = r[i % 4], b = r[4 + i % 4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_stride),
                          i < 4 ? _mm256_permute2x128_si256(a, b, 0x20) : _mm256_permute2x128_si256(a, b, 0x31));
    }
  }
  static FEWBIT_INLINE void store(uint8_t* p, bytes v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  static FEWBIT_INLINE f32 to_floats(ints a) { return _mm256_cvtepi32_ps(a); }
  template <int part, bool is_signed>
  static FEWBIT_INLINE f32 widen(bytes v) {
    __m128i half = part < 2 ? _mm256_castsi256_si128(v) : _mm256_extracti128_si256(v, 1);
    if constexpr (part % 2) half = _mm_srli_si128(half, 8);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(half) : _mm256_cvtepu8_epi32(half));
  }
  template <Small t, int k>
  static FEWBIT_INLINE __m256i piece(__m256i window) {
    alignas(32) static constexpr auto index = [] {
      std::array<uint8_t, 32> out{};
      for (int i = 0; i < 32; ++i) {
        const bool used = t.mask[k][i / 4] && i % 4 < t.bytes[k][i / 4];
        out[i] = static_cast<uint8_t>(used ? t.byte[k][i / 4] + i % 4 : 0x80);
      }
      return out;
    }();
    static constexpr Small s = t;
    const __m256i v = _mm256_srlv_epi32(_mm256_shuffle_epi8(window, load(index.data())), table(s.shift[k]));
    const __m256i masked = _mm256_and_si256(v, table(s.mask[k]));
    return k > 0 ? _mm256_sllv_epi32(masked, table(s.dst[k])) : masked;
  }
  template <Small t>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    const __m256i window = _mm256_broadcastsi128_si256(load16(p + t.window));
    __m256i v = piece<t, 0>(window);
    if constexpr (t.pieces > 1) v = _mm256_or_si256(v, piece<t, 1>(window));
    if constexpr (t.pieces > 2) v = _mm256_or_si256(v, piece<t, 2>(window));
    if constexpr (t.is_signed)
      v = _mm256_srai_epi32(_mm256_slli_epi32(v, 24), 24);
    else if constexpr (t.zero[0] != 0 && t.times == 1)
      v = _mm256_sub_epi32(v, _mm256_set1_epi32(t.zero[0]));
    return _mm256_cvtepi32_ps(v);
  }
  static FEWBIT_INLINE f32 half(const uint8_t* p) {
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(fewbit::load<uint16_t>(p))));
  }
  static FEWBIT_INLINE f32 half_pair(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_set1_epi32(fewbit::load<int32_t>(p)));
  }
  static FEWBIT_INLINE void two_halves(const uint8_t* p, f32& a, f32& b) {
    a = half(p);
    b = half(p + 2);
  }
  // Half of 2^(e - 127) for eight exponents.
  static FEWBIT_INLINE f32 powers(__m256i e) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i low = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(low, normal, _mm256_cmpgt_epi32(e, one)));
  }
  template <Real r, int block, int size>
  static FEWBIT_INLINE f32 eight_apart(const uint8_t* p) {
    if constexpr (r == Real::f16) {
      const auto h = [&](int g) { return static_cast<short>(fewbit::load<uint16_t>(p + g * 32 / block * size)); };
      return _mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7)));
    } else if constexpr (r == Real::e8m0) {
      const auto b = [&](int g) { return static_cast<int>(p[g * 32 / block * size]); };
      return powers(_mm256_setr_epi32(b(0), b(1), b(2), b(3), b(4), b(5), b(6), b(7)));
    } else {
      const auto f = [&](int g) { return fewbit::load<float>(p + g * 32 / block * size); };
      return _mm256_setr_ps(f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7));
    }
  }
  template <Real r, int block, int size, bool offset>
  static FEWBIT_INLINE void strided(const uint8_t* p, f32* out) {
    if constexpr (block == kBlockK && r == Real::f16)
      out[0] = half(p);
    else
      out[0] = eight_apart<r, block, size>(p);
    if constexpr (offset) out[1] = eight_apart<r, block, size>(p + real_bytes(r));
  }
  static FEWBIT_INLINE f32 half_ue4m3(__m256i code) {  // halves of what eight codes stand for
    const __m256i u = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(u, 20), _mm256_set1_epi32(119 << 23));
    const __m256 low = _mm256_mul_ps(_mm256_cvtepi32_ps(u), _mm256_set1_ps(0x1p-10f));  // subnormals
    const __m256 is_low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), u));
    const __m256 none = _mm256_castsi256_ps(_mm256_cmpeq_epi32(code, _mm256_set1_epi32(0x7f)));
    return _mm256_andnot_ps(none, _mm256_blendv_ps(_mm256_castsi256_ps(normal), low, is_low));
  }
  template <Real r, int size>
  static FEWBIT_INLINE void quads(const uint8_t* p, f32* out) {
    static_assert(r == Real::ue4m3);
    for (int v = 0; v < 2; ++v) {
      const uint8_t* at = p + 2 * v * size;
      const __m128i codes = _mm_setr_epi32(fewbit::load<int32_t>(at), fewbit::load<int32_t>(at + size), 0, 0);
      out[v] = half_ue4m3(_mm256_cvtepu8_epi32(codes));
    }
  }
  template <bool offset>
  static FEWBIT_INLINE void deal(f32x8 scales, f32x8 offsets, int shift, f32* out, std::bool_constant<offset>) {
    const __m256i lane = _mm256_srlv_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(shift));
    out[0] = _mm256_permutevar8x32_ps(scales, lane);
    if constexpr (offset) out[1] = _mm256_permutevar8x32_ps(offsets, lane);
  }

  static FEWBIT_INLINE f32 splat(float x) { return _mm256_set1_ps(x); }
  static FEWBIT_INLINE f32 only(f32 x, const uint32_t* ones) {  // the rest is 0
    return _mm256_and_ps(x, _mm256_load_ps(reinterpret_cast<const float*>(ones)));
  }
  static FEWBIT_INLINE f32 alternate(float a, float b) { return _mm256_setr_ps(a, b, a, b, a, b, a, b); }
  static FEWBIT_INLINE f32 zero() { return _mm256_setzero_ps(); }
  static FEWBIT_INLINE f32 fma(f32 a, f32 b, f32 c) { return _mm256_fmadd_ps(a, b, c); }
  static FEWBIT_INLINE uint32_t largest_of_32(const float* x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
      top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), mask));
    }
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1))));
  }
  static FEWBIT_INLINE int quantize_16(const float* x, float by, int8_t* out) {
    const __m256 factor = _mm256_set1_ps(by);
    const __m256i some = _mm256_set1_epi32(by == 0 ? 0 : -1);
    const __m256i a = _mm256_and_si256(some, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor)));
    const __m256i b = _mm256_and_si256(some, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor)));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m128i bytes16 = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes16);
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
  }
  static FEWBIT_INLINE f32 fnma(f32 a, f32 b, f32 c) { return _mm256_fnmadd_ps(a, b, c); }
  template <bool minus>
  static FEWBIT_INLINE f32 fma_odd(f32 a, f32 b, f32 c) {
    const f32 odd = _mm256_blend_ps(_mm256_setzero_ps(), a, 0xAA);
    return minus ? _mm256_fnmadd_ps(odd, b, c) : _mm256_fmadd_ps(odd, b, c);
  }
  static FEWBIT_INLINE f32 mul(f32 a, f32 b) { return _mm256_mul_ps(a, b); }
  static FEWBIT_INLINE f32 add(f32 a, f32 b) { return _mm256_add_ps(a, b); }
  template <std::array<int, 16> i>
  static FEWBIT_INLINE f32 spread(f32 v) {
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]));
  }
  static FEWBIT_INLINE float sum(f32 v) {
    float t[8];
    _mm256_storeu_ps(t, v);
    return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7]));
  }
  static FEWBIT_INLINE f32 loadf(const float* p) { return _mm256_load_ps(p); }
  static FEWBIT_INLINE f32 loadu(const float* p) { return _mm256_loadu_ps(p); }
  static FEWBIT_INLINE void storef(float* p, f32 v) { _mm256_storeu_ps(p, v); }

  template <Real r>
  static FEWBIT_INLINE f32 splat_real(const uint8_t* p) {
    return splat(real<r>(p));
  }
  template <Real r>
  static FEWBIT_INLINE f32 reals_at(const uint8_t* p) {
    if constexpr (r == Real::f32)
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    else if constexpr (r == Real::f16)
      return _mm256_cvtph_ps(load16(p));
    else
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
  template <Run16 g>
  static FEWBIT_INLINE __m128i run(const uint8_t* p) {
    if constexpr (g.in_bits) {
      const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
      const __m128i bit = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
      const __m128i v = _mm_shuffle_epi8(_mm_set1_epi16(fewbit::load<int16_t>(p + g.at)), byte);
      return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(v, bit), bit), _mm_set1_epi8(static_cast<char>(1 << g.dst)));
    } else {
      return run_of_bytes<g>(p);
    }
  }
  template <bool is_signed>
  static FEWBIT_INLINE void widen16(__m128i v, f32* out) {
    const __m128i high = _mm_srli_si128(v, 8);
    out[0] = _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
    out[1] = _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(high) : _mm256_cvtepu8_epi32(high));
  }
  static FEWBIT_INLINE f32 larger(f32 a, f32 b) { return _mm256_max_ps(a, b); }
  static FEWBIT_INLINE float top(f32 v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static FEWBIT_INLINE bool any_positive(f32 v) {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NLE_UQ)) != 0;
  }
  static FEWBIT_INLINE f32 exp(f32 x) {
    const f32 least = _mm256_set1_ps(-87.0f), v = _mm256_max_ps(least, x);
    const f32 n = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504f)), 8);
    f32 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), v);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    f32 p = _mm256_set1_ps(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
      p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
  }
  static FEWBIT_INLINE void sums_of_4(const f32* v, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(v[i]);
  }
};
