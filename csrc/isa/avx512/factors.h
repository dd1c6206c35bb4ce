// Scales and offsets of a k-block.

struct Factors : Grids {
  template <Small t, int k>
  static FEWBIT_INLINE __m512i piece(__m512i window) {
    alignas(64) static constexpr auto index = [] {
      std::array<uint8_t, 64> out{};
      for (int i = 0; i < 64; ++i) {
        const bool used = t.mask[k][i / 4] && i % 4 < t.bytes[k][i / 4];
        out[i] = static_cast<uint8_t>(used ? t.byte[k][i / 4] + i % 4 : 0x80);
      }
      return out;
    }();
    static constexpr Small s = t;
    const __m512i v =
        _mm512_srlv_epi32(_mm512_shuffle_epi8(window, load(index.data())), _mm512_loadu_si512(s.shift[k]));
    const __m512i masked = _mm512_and_si512(v, _mm512_loadu_si512(s.mask[k]));
    return k > 0 ? _mm512_sllv_epi32(masked, _mm512_loadu_si512(s.dst[k])) : masked;
  }
  template <Small t>
  static FEWBIT_INLINE __m512i two(__m512i window) {
    static constexpr TwoPieces w = two_pieces<t>();
    const __m512i v = _mm512_srlv_epi16(_mm512_shuffle_epi8(window, load(w.byte)), _mm512_loadu_si512(w.shift));
    return _mm512_madd_epi16(_mm512_and_si512(v, _mm512_loadu_si512(w.mask)), _mm512_loadu_si512(w.weight));
  }
  // The same, not shifted down, less the zero.
  template <Small t>
  static FEWBIT_INLINE __m512i two_unshifted(__m512i window) {
    static constexpr TwoPieces w = two_pieces<t, true>();
    const __m512i v = _mm512_and_si512(_mm512_shuffle_epi8(window, load(w.byte)), _mm512_loadu_si512(w.mask));
    return add_words(_mm512_set1_epi32(-(t.zero[0] << t.unshifted_by())), v, _mm512_loadu_si512(w.weight));
  }
  template <Small t>
  static FEWBIT_INLINE __m512i one_byte(const uint8_t* p) {
    if constexpr (t.in_order()) return _mm512_cvtepu8_epi32(load16(p));
    static constexpr TwoPieces w = two_pieces<t>();  // of which there is only the first
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(p)), load(w.byte));
  }
  // `unshifted`: times 2 to the power of t.unshifted_by().
  template <Small t, bool unshifted = false>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    __m512i v;
    if constexpr (t.in_order() && t.is_signed) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p + t.window)));
    } else if constexpr (t.alike() && !t.is_signed) {
      constexpr int mask = t.mask[0][0], shift = t.shift[0][0], up = unshifted ? t.unshifted_by() : 0;
      v = one_byte<t>(p + t.window);
      if constexpr (mask == 15 && shift == 0 && t.zero[0] == 0) {
        const f32 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return _mm512_permutexvar_ps(v, numbers);  // looks at four bits only
      }
      if constexpr (up < shift) v = _mm512_srli_epi32(v, shift - up);
      if constexpr (up > 0 || mask << shift < 0x80) v = _mm512_and_si512(v, _mm512_set1_epi32(mask << up));
    } else if constexpr (unshifted && t.unshifted_by() > 0) {
      return _mm512_cvtepi32_ps(two_unshifted<t>(_mm512_broadcast_i32x4(load16(p + t.window))));
    } else if constexpr (t.wide) {
      static constexpr Small w = t;
      v = _mm512_permutexvar_epi32(_mm512_loadu_si512(w.byte[0]), load(p + t.window));
      v = _mm512_and_si512(_mm512_srlv_epi32(v, _mm512_loadu_si512(w.shift[0])), _mm512_loadu_si512(w.mask[0]));
    } else {
      const __m512i window = _mm512_broadcast_i32x4(load16(p + t.window));
      if constexpr (t.pieces == 2) {
        v = two<t>(window);
      } else {
        v = piece<t, 0>(window);
        if constexpr (t.pieces > 1) v = _mm512_or_si512(v, piece<t, 1>(window));
        if constexpr (t.pieces > 2) v = _mm512_or_si512(v, piece<t, 2>(window));
      }
      if constexpr (t.is_signed) v = _mm512_srai_epi32(_mm512_slli_epi32(v, 24), 24);
    }
    constexpr int zero = t.is_signed || t.times != 1 ? 0 : t.zero[0] << (unshifted ? t.unshifted_by() : 0);
    if constexpr (zero != 0) v = _mm512_sub_epi32(v, _mm512_set1_epi32(zero));
    return _mm512_cvtepi32_ps(v);
  }
  static FEWBIT_INLINE f32 half(const uint8_t* p) {  // the f16 in every lane
    return _mm512_cvtph_ps(_mm256_set1_epi16(fewbit::load<int16_t>(p)));
  }
  static FEWBIT_INLINE f32 half_of_8(const uint8_t* p) {  // the same if eight bytes can be read
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static FEWBIT_INLINE f32 half_pair(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_set1_epi32(fewbit::load<int32_t>(p)));
  }
  static FEWBIT_INLINE void two_halves(const uint8_t* p, f32& a, f32& b) {  // each in every lane
    const f32 pair = half_pair(p);
    a = _mm512_moveldup_ps(pair);
    b = _mm512_movehdup_ps(pair);
  }
  // Half of 2^(e - 127) for eight exponents; 0 where that is no normal number.
  static FEWBIT_INLINE __m256i powers(__m256i e) {
    return _mm256_slli_epi32(_mm256_subs_epu16(e, _mm256_set1_epi32(1)), 23);
  }
  // Words that lie 32 values apart, one for each of eight groups: which 64-byte window of the k-block holds each of
  // them, at which of its dwords, and how far up in that.
  struct Words {
    int windows = 0, at[8] = {}, window[8] = {}, shift[8] = {};
    std::array<int, 16> index[2] = {};  // for windows 0 and 1, 2 and 3
  };
  template <int block, int size>
  static constexpr Words words() {
    Words out;
    constexpr int last = kBlockK / block * size - 64;
    for (int g = 0; g < 8; ++g) {
      const int byte = g * 32 / block * size;
      if (out.windows == 0 || byte + 4 > out.at[out.windows - 1] + 64) {
        out.at[out.windows++] = byte < last ? byte : last;
      }
      const int w = out.windows - 1, inside = byte - out.at[w];
      out.window[g] = w;
      out.shift[g] = inside % 4 * 8;
      out.index[w / 2][g] = w % 2 * 16 + inside / 4;
    }
    return out;
  }
  template <int block, int size, int first>
  static FEWBIT_INLINE __m128i four_words(const uint8_t* p) {  // inserted one by one: gcc 12 would go through the stack
    __m128i v = _mm_cvtsi32_si128(fewbit::load<int32_t>(p + first * 32 / block * size));
    v = _mm_insert_epi32(v, fewbit::load<int32_t>(p + (first + 1) * 32 / block * size), 1);
    v = _mm_insert_epi32(v, fewbit::load<int32_t>(p + (first + 2) * 32 / block * size), 2);
    return _mm_insert_epi32(v, fewbit::load<int32_t>(p + (first + 3) * 32 / block * size), 3);
  }
  template <int block, int size>
  static FEWBIT_INLINE __m256i eight_words(const uint8_t* p) {
    if constexpr (kBlockK / block * size < 64) {
      return _mm256_inserti128_si256(_mm256_castsi128_si256(four_words<block, size, 0>(p)),
                                     four_words<block, size, 4>(p), 1);
    } else {
      return eight_words_in_windows<block, size>(p);
    }
  }
  template <int block, int size>
  static FEWBIT_INLINE __m256i eight_words_in_windows(const uint8_t* p) {
    static constexpr Words at = words<block, size>();
    static_assert(at.windows <= 4);
    constexpr int second = at.windows > 1 ? 1 : 0, fourth = at.windows > 3 ? 3 : 2;
    __m512i v =
        _mm512_permutex2var_epi32(load(p + at.at[0]), _mm512_loadu_si512(at.index[0].data()), load(p + at.at[second]));
    if constexpr (at.windows > 2) {
      constexpr __mmask16 later = [] {
        int mask = 0;
        for (int g = 0; g < 8; ++g) mask |= (at.window[g] > 1) << g;
        return static_cast<__mmask16>(mask);
      }();
      const __m512i rest = _mm512_permutex2var_epi32(load(p + at.at[2]), _mm512_loadu_si512(at.index[1].data()),
                                                     load(p + at.at[fourth]));
      v = _mm512_mask_mov_epi32(v, later, rest);
    }
    constexpr bool shifted = [] {
      for (int g = 0; g < 8; ++g) {
        if (at.shift[g]) return true;
      }
      return false;
    }();
    const __m256i low = _mm512_castsi512_si256(v);
    return shifted ? _mm256_srlv_epi32(low, load32(at.shift)) : low;
  }
  // One float a block in the even lanes; the ones right after each, if `offset`, in the odd lanes.
  template <Real r, int block, int size, bool offset>
  static FEWBIT_INLINE void strided(const uint8_t* p, f32* out) {
    if constexpr (block == kBlockK && !offset) {
      if constexpr (r == Real::f16)
        out[0] = half(p);
      else
        out[0] = _mm512_set1_ps(real<r>(p));
      return;
    }
    const __m256i v = eight_words<block, size>(p);
    if constexpr (r == Real::f16) {
      out[0] = _mm512_cvtph_ps(offset ? v : _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF)));
    } else {
      const __m256i bits = r == Real::e8m0 ? powers(_mm256_and_si256(v, _mm256_set1_epi32(0xFF))) : v;
      out[0] = _mm512_castsi512_ps(_mm512_cvtepu32_epi64(bits));
    }
  }
  // Sixteen ue4m3 as halves of what they stand for; with seven bits more they are f16, 2^8 times too small.
  template <Real r, int size>
  static FEWBIT_INLINE void quads(const uint8_t* p, f32* out) {
    static_assert(r == Real::ue4m3 && size % 4 == 0 && size + 4 <= 64);
    const __m512i at = _mm512_setr_epi32(0, size / 4, 16, 16 + size / 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i code = _mm512_castsi512_si128(_mm512_permutex2var_epi32(load(p), at, load(p + 2 * size)));
    const __m256i bits = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_and_si128(code, _mm_set1_epi8(0x7f))), 7);
    const __mmask16 is_number = _mm_cmpneq_epi8_mask(code, _mm_set1_epi8(0x7f));
    out[0] = _mm512_maskz_mul_ps(is_number, _mm512_cvtph_ps(bits), _mm512_set1_ps(0x1p7f));
  }
  template <bool offset>
  static FEWBIT_INLINE void deal(f32x8 scales, f32x8 offsets, int shift, f32* out, std::bool_constant<offset>) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512i lane = pairs;
    if (shift != 0) [[unlikely]]
      lane = _mm512_srlv_epi32(pairs, _mm512_set1_epi32(shift));
    out[0] = _mm512_permutexvar_ps(lane, _mm512_castps256_ps512(scales));
    if constexpr (offset) {
      out[0] = _mm512_mask_permutexvar_ps(out[0], 0xAAAA, lane, _mm512_castps256_ps512(offsets));
    }
  }

  template <Real r>
  static FEWBIT_INLINE f32 splat_real(const uint8_t* p) {
    if constexpr (r == Real::f16)
      return half(p);
    else
      return _mm512_set1_ps(read_real(r, p));
  }
};
