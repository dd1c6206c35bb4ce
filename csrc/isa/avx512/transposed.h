// Sixteen rows side by side: bytes of all of them transposed.

FEWBIT_INLINE void transpose16(__m512i* r) {  // 16 rows of 16 dwords
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

struct SideBySide : Factors {
  // L rows of L dwords, `stride` bytes apart, transposed.
  static FEWBIT_INLINE void transpose(const uint8_t* in, size_t stride, uint8_t* out, size_t out_stride) {
    __m512i r[16];
    for (size_t i = 0; i < 16; ++i) r[i] = load(in + i * stride);
    transpose16(r);
    for (size_t i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * out_stride, r[i]);
  }
  // 16 bytes of each of 16 rows: out[d] holds dword d of every row.
  static FEWBIT_INLINE bytes quarter_rows(const uint8_t* p, size_t stride) {  // of every fourth row
    bytes v = _mm512_broadcast_i32x4(load16(p));
    v = _mm512_mask_broadcast_i32x4(v, 0xF0, load16(p + 4 * stride));
    v = _mm512_mask_broadcast_i32x4(v, 0xF00, load16(p + 8 * stride));
    return _mm512_mask_broadcast_i32x4(v, 0xF000, load16(p + 12 * stride));
  }
  static FEWBIT_INLINE void transpose_window(const uint8_t* p, size_t stride, bytes* out) {
    const bytes a = quarter_rows(p, stride), b = quarter_rows(p + stride, stride);
    const bytes c = quarter_rows(p + 2 * stride, stride), d = quarter_rows(p + 3 * stride, stride);
    const bytes e = _mm512_unpacklo_epi32(a, b), f = _mm512_unpackhi_epi32(a, b);
    const bytes g = _mm512_unpacklo_epi32(c, d), h = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(e, g);
    out[1] = _mm512_unpackhi_epi64(e, g);
    out[2] = _mm512_unpacklo_epi64(f, h);
    out[3] = _mm512_unpackhi_epi64(f, h);
  }
  // Four lines, a dword of each row in them, to 16 bytes of each row, and back.
  static FEWBIT_INLINE void lines_to_rows(const uint8_t* lines, uint8_t* rows, size_t stride) {
    const bytes a = load(lines), b = load(lines + 64), c = load(lines + 128), d = load(lines + 192);
    const bytes e = _mm512_unpacklo_epi32(a, b), f = _mm512_unpackhi_epi32(a, b);
    const bytes g = _mm512_unpacklo_epi32(c, d), h = _mm512_unpackhi_epi32(c, d);
    store_quarters(_mm512_unpacklo_epi64(e, g), rows, 4 * stride);
    store_quarters(_mm512_unpackhi_epi64(e, g), rows + stride, 4 * stride);
    store_quarters(_mm512_unpacklo_epi64(f, h), rows + 2 * stride, 4 * stride);
    store_quarters(_mm512_unpackhi_epi64(f, h), rows + 3 * stride, 4 * stride);
  }
  static FEWBIT_INLINE void store_quarters(bytes v, uint8_t* p, size_t stride) {
    const auto at = [&](size_t i) FEWBIT_LAMBDA_INLINE { return reinterpret_cast<__m128i*>(p + i * stride); };
    _mm_storeu_si128(at(0), _mm512_castsi512_si128(v));
    _mm_storeu_si128(at(1), _mm512_extracti32x4_epi32(v, 1));
    _mm_storeu_si128(at(2), _mm512_extracti32x4_epi32(v, 2));
    _mm_storeu_si128(at(3), _mm512_extracti32x4_epi32(v, 3));
  }
  static FEWBIT_INLINE void rows_to_lines(const uint8_t* rows, size_t stride, uint8_t* lines) {
    bytes out[4];
    transpose_window(rows, stride, out);
    for (size_t i = 0; i < 4; ++i) _mm512_storeu_si512(lines + 64 * i, out[i]);
  }
  // `bits` bits of every byte, from bit `shift` to bit `dst`.
  template <int shift, int bits, int dst>
  static FEWBIT_INLINE bytes take(bytes v) {
    if constexpr (bits == 8) return v;
    constexpr int down = shift - dst;
    if constexpr (down > 0) v = _mm512_srli_epi16(v, down > 0 ? down : 0);
    if constexpr (down < 0) v = _mm512_slli_epi16(v, down < 0 ? -down : 0);
    return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(((1 << bits) - 1) << dst)));
  }
  // Four neighbouring bits of byte `byte` of every dword, one to each of its bytes.
  template <int byte, int shift, int dst>
  static FEWBIT_INLINE bytes take_bits(bytes v) {
    constexpr int four = byte * 0x01010101, in_lane = 0x04040404;
    const __m512i index = _mm512_set4_epi32(four + 3 * in_lane, four + 2 * in_lane, four + in_lane, four);
    const __mmask64 is_set =
        _mm512_test_epi8_mask(_mm512_shuffle_epi8(v, index), _mm512_set1_epi32(0x08040201 << shift));
    return _mm512_maskz_set1_epi8(is_set, static_cast<char>(1 << dst));
  }
  // `bits` bits of every dword, from bit `shift` to bit `dst`.
  template <int shift, int bits, int dst, bool is_signed>
  static FEWBIT_INLINE ints field(bytes v) {
    if constexpr (is_signed) return _mm512_srai_epi32(_mm512_slli_epi32(v, 32 - shift - bits), 32 - bits);
    constexpr int down = shift - dst;
    if constexpr (down > 0) v = _mm512_srli_epi32(v, down > 0 ? down : 0);
    if constexpr (down < 0) v = _mm512_slli_epi32(v, down < 0 ? -down : 0);
    return shift + bits == 32 && dst == 0 ? v : _mm512_and_si512(v, _mm512_set1_epi32(((1 << bits) - 1) << dst));
  }
  template <int zero>
  static FEWBIT_INLINE f32 less_to_floats(ints v) {
    return _mm512_cvtepi32_ps(zero ? _mm512_sub_epi32(v, _mm512_set1_epi32(zero)) : v);
  }
  template <bool high>
  static FEWBIT_INLINE f32 halves_of(bytes v) {  // the f16 in the low or the high half of every dword
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(high ? _mm512_srli_epi32(v, 16) : v));
  }
  template <Real r>
  static FEWBIT_INLINE f32 byte_real(ints v) {
    if constexpr (r == Real::e8m0) {
      return e8m0(v);
    } else {  // half of a ue4m3: with seven bits more it is an f16, 2^8 times too small
      static_assert(r == Real::ue4m3);
      const __m256i bits = _mm512_cvtepi32_epi16(_mm512_slli_epi32(_mm512_and_si512(v, _mm512_set1_epi32(0x7f)), 7));
      const __mmask16 is_number = _mm512_cmpneq_epi32_mask(v, _mm512_set1_epi32(0x7f));
      return _mm512_maskz_mul_ps(is_number, _mm512_cvtph_ps(bits), _mm512_set1_ps(0x1p7f));
    }
  }
  static FEWBIT_INLINE f32 e8m0(ints e) {  // half of 2^(e - 127), as tables of twice the values want it
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_subs_epu16(e, _mm512_set1_epi32(1)), 23));
  }
  static FEWBIT_INLINE f32 as_floats(bytes v) { return _mm512_castsi512_ps(v); }
  // Dwords from bit `shift` of a on; what is missing comes from b.
  template <int shift>
  static FEWBIT_INLINE bytes joined(bytes a, bytes b) {
    return _mm512_or_si512(_mm512_srli_epi32(a, shift), _mm512_slli_epi32(b, 32 - shift));
  }
  template <int zero>
  static FEWBIT_INLINE bytes less(bytes v) {
    return zero ? _mm512_sub_epi8(v, _mm512_set1_epi8(zero)) : v;
  }
  // Bytes i and i + 1, as words.
  template <int i, bool is_signed>
  static FEWBIT_INLINE ints two_of(bytes v) {
    return is_signed ? high_bytes(pick<-1, i, -1, i + 1>(v)) : pick<i, -1, i + 1, -1>(v);
  }
};
