// Codes out of the bytes of a k-block.

struct Codes : Dots {
  template <int a, int b, int c, int d, int room>
  static FEWBIT_INLINE bytes four(const uint8_t* p) {  // 16 bytes from each of four addresses; `room` bytes may be read
    if constexpr (b == a + 16 && c == a + 32 && d == a + 48)
      return load(p + a);
    else if constexpr (b == a + 16 && c == a && d == b)
      return _mm512_broadcast_i64x4(load32(p + a));
    else if constexpr (b == a + 16 && d == c + 16) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(load32(p + a)), load32(p + c), 1);
    } else if constexpr (b == a + 32 && c == a + 64 && d == a + 96) {
      constexpr bool fits = a + 128 <= room;
      constexpr int from = fits ? a : a - 16;
      return _mm512_shuffle_i64x2(load(p + from), load(p + from + 64), fits ? 0x88 : 0xDD);
    } else if constexpr (a == b && a == c && a == d) {
      return _mm512_broadcast_i32x4(load16(p + a));
    } else if constexpr (b == a && c == d) {
      return _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load16(p + a)), 0xFF00, load16(p + c));
    } else {
      bytes v = _mm512_broadcast_i32x4(load16(p + a));
      v = _mm512_mask_broadcast_i32x4(v, 0xF0, load16(p + b));
      v = _mm512_mask_broadcast_i32x4(v, 0xF00, load16(p + c));
      return _mm512_mask_broadcast_i32x4(v, 0xF000, load16(p + d));
    }
  }
  template <Lanes g, bool unshifted>
  static FEWBIT_INLINE bytes lanes(const uint8_t* p) {
    const bytes v = four<g.at[0], g.at[1], g.at[2], g.at[3], g.room>(p);
    if constexpr (g.bits == 8) return v;
    if constexpr (unshifted) {
      constexpr int m = (1 << g.bits) - 1;
      constexpr int a = static_cast<int>(0x01010101u * (m << g.shift[0])),
                    b = static_cast<int>(0x01010101u * (m << g.shift[1]));
      constexpr int c = static_cast<int>(0x01010101u * (m << g.shift[2])),
                    d = static_cast<int>(0x01010101u * (m << g.shift[3]));
      return _mm512_and_si512(v, _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d));
    }
    const bytes mask = _mm512_set1_epi8(static_cast<char>(((1 << g.bits) - 1) << g.dst));
    constexpr int a = g.shift[0] - g.dst, b = g.shift[1] - g.dst, c = g.shift[2] - g.dst, d = g.shift[3] - g.dst;
    if constexpr (a == b && b == c && c == d) {
      return _mm512_and_si512(a >= 0 ? _mm512_srli_epi16(v, a >= 0 ? a : 0) : _mm512_slli_epi16(v, a < 0 ? -a : 0),
                              mask);
    } else {
      constexpr int A = a & 31, B = b & 31, C = c & 31, D = d & 31;
      const bytes by = _mm512_setr_epi32(A, A, A, A, B, B, B, B, C, C, C, C, D, D, D, D);
      return _mm512_and_si512(_mm512_rorv_epi32(v, by), mask);
    }
  }
  // The bits `first` and `first + 2` of a number below 16, as bits 2 and 6.
  template <int first>
  static FEWBIT_INLINE bytes two_bits(bytes v) {
    alignas(16) static constexpr auto table = [] {
      std::array<uint8_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = static_cast<uint8_t>((i >> first & 1) << 2 | (i >> (first + 2) & 1) << 6);
      return t;
    }();
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(table.data())), v);
  }
  // Codes of two bits and of one, joined: those of shifts 0 and 2 in the halves of bytes, and those of shifts 1 and 3.
  template <class F>
  static FEWBIT_INLINE void joined(const uint8_t* p, bytes& even, bytes& odd) {
    using S = Shape<F>;
    const bytes two = load(p + S::first_code()), one = _mm512_broadcast_i64x4(load32(p + S::first_bit()));
    const bytes by = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const bytes four = _mm512_and_si512(_mm512_srlv_epi32(one, by), _mm512_set1_epi8(15));
    const bytes mask = _mm512_set1_epi8(0x33);
    even = _mm512_or_si512(_mm512_and_si512(two, mask), two_bits<0>(four));
    odd = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(two, 2), mask), two_bits<1>(four));
  }
  // Codes in the transposed order, left unshifted in their bytes.
  template <int v>
  static FEWBIT_INLINE bytes transposed_joined(bytes even, bytes odd) {
    alignas(64) static constexpr auto index = [] {
      std::array<int, 16> out{};
      for (int l = 0; l < 16; ++l) out[l] = l / 4 * 4 + transposed_four(v, l) + l % 2 * 16;
      return out;
    }();
    return _mm512_permutex2var_epi32(even, _mm512_load_si512(index.data()), odd);
  }
  template <class F>
  static FEWBIT_INLINE void transposed(const uint8_t* p, bytes* out) {
    using S = Shape<F>;
    alignas(16) static constexpr auto masks = [] {
      std::array<uint32_t, 4> out{};
      for (int l = 0; l < 4; ++l) out[l] = 0x01010101u * (((1u << F::codes.bits()) - 1) << S::transposed_shift(l));
      return out;
    }();
    if constexpr (S::joins()) {
      bytes even, odd;
      joined<F>(p, even, odd);
      out[0] = transposed_joined<0>(even, odd);
      out[1] = transposed_joined<1>(even, odd);
      out[2] = transposed_joined<2>(even, odd);
      out[3] = transposed_joined<3>(even, odd);
    } else {
      out[0] = load(p + S::first_code());
      out[1] = _mm512_shuffle_epi32(out[0], _MM_PERM_ADCB);
      out[2] = _mm512_shuffle_epi32(out[0], _MM_PERM_BADC);
      out[3] = _mm512_shuffle_epi32(out[0], _MM_PERM_CBAD);
    }
    const bytes mask = _mm512_broadcast_i32x4(load16(masks.data()));
    for (int v = 0; v < 4; ++v) out[v] = _mm512_and_si512(out[v], mask);
  }
  template <Halves g>
  static FEWBIT_INLINE bytes shared_halves(const uint8_t* p) {
    const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    const bytes v = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(load32(p + g.at[0])));
    const bytes by = _mm512_setr_epi64((g.shift[0] - g.dst) & 63, (g.shift[1] - g.dst) & 63, (g.shift[2] - g.dst) & 63,
                                       (g.shift[3] - g.dst) & 63, (g.shift[4] - g.dst) & 63, (g.shift[5] - g.dst) & 63,
                                       (g.shift[6] - g.dst) & 63, (g.shift[7] - g.dst) & 63);
    return _mm512_and_si512(_mm512_rorv_epi64(v, by),
                            _mm512_set1_epi8(static_cast<char>(((1 << g.bits) - 1) << g.dst)));
  }
  template <Scatter g>
  static FEWBIT_INLINE bytes scattered(const uint8_t* p) {
    alignas(64) static constexpr auto index = [] {
      std::array<uint8_t, 64> t{};
      for (int i = 0; i < 64; ++i) t[i] = g.byte[i];
      return t;
    }();
    if constexpr (g.bits == 1 && g.in_order()) {
      const auto sixteen = [&](int l) FEWBIT_LAMBDA_INLINE {
        return static_cast<uint64_t>(fewbit::load<uint16_t>(p + g.window[l] + g.byte[16 * l])) << (16 * l);
      };
      const __mmask64 is_set = (sixteen(0) | sixteen(1)) | (sixteen(2) | sixteen(3));
      return _mm512_maskz_set1_epi8(is_set, static_cast<char>(1 << g.dst));
    }
    const bytes v =
        _mm512_shuffle_epi8(four<g.window[0], g.window[1], g.window[2], g.window[3], g.room>(p), load(index.data()));
    if constexpr (g.bits == 1) {
      alignas(64) static constexpr auto bit = [] {
        std::array<uint8_t, 64> t{};
        for (int i = 0; i < 64; ++i) t[i] = static_cast<uint8_t>(1 << g.shift[i]);
        return t;
      }();
      return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(v, load(bit.data())), static_cast<char>(1 << g.dst));
    } else {  // even and odd bytes shifted apart
      alignas(64) static constexpr auto even = [] {
        std::array<uint16_t, 32> t{};
        for (int i = 0; i < 32; ++i) t[i] = g.shift[2 * i];
        return t;
      }();
      alignas(64) static constexpr auto odd = [] {
        std::array<uint16_t, 32> t{};
        for (int i = 0; i < 32; ++i) t[i] = g.shift[2 * i + 1];
        return t;
      }();
      const bytes lo = _mm512_srlv_epi16(v, _mm512_load_si512(even.data()));
      const bytes hi = _mm512_srlv_epi16(v, _mm512_load_si512(odd.data()));
      const bytes both = _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAull, lo, hi);
      const bytes masked = _mm512_and_si512(both, _mm512_set1_epi8(static_cast<char>((1 << g.bits) - 1)));
      return g.dst ? _mm512_slli_epi16(masked, g.dst) : masked;
    }
  }
  template <Codebook book, int bias>
  static FEWBIT_INLINE bytes lookup(bytes v) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(lookup_table<book, bias>.data())), v);
  }
};
