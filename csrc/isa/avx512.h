// AVX-512 F, BW, DQ, VL and VNNI: 64 bytes, 16 floats. The dot product is vpdpbusd, unsigned codes times signed
// activations.
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

struct Isa {
  static constexpr int W = 64, L = 16, max_unsigned = 255;
  static constexpr bool can_cross = true, can_gather = true, can_turn = true;
  using bytes = __m512i;
  using f32 = __m512;

  static FEWBIT_INLINE __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static FEWBIT_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static FEWBIT_INLINE __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  template <int a, int b, int c, int d, int room>
  static FEWBIT_INLINE bytes four(const uint8_t* p) {  // 16 bytes from each of four places; `room` bytes may be read
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
  template <Lanes g, bool stays>
  static FEWBIT_INLINE bytes lanes(const uint8_t* p) {
    const bytes v = four<g.at[0], g.at[1], g.at[2], g.at[3], g.room>(p);
    if constexpr (g.bits == 8) return v;
    if constexpr (stays) {
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
  // Codes of two bits and of one, joined: those of places 0 and 2 in the halves of bytes, and those of places 1 and 3.
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
  // Codes in the turned order, left at their place in their bytes.
  template <int v>
  static FEWBIT_INLINE bytes turned_joined(bytes even, bytes odd) {
    alignas(64) static constexpr auto index = [] {
      std::array<int, 16> out{};
      for (int l = 0; l < 16; ++l) out[l] = l / 4 * 4 + turned_four(v, l) + l % 2 * 16;
      return out;
    }();
    return _mm512_permutex2var_epi32(even, _mm512_load_si512(index.data()), odd);
  }
  template <class F>
  static FEWBIT_INLINE void turned(const uint8_t* p, bytes* out) {
    using S = Shape<F>;
    alignas(16) static constexpr auto masks = [] {
      std::array<uint32_t, 4> out{};
      for (int l = 0; l < 4; ++l) out[l] = 0x01010101u * (((1u << F::codes.bits()) - 1) << S::turned_place(l));
      return out;
    }();
    if constexpr (S::joins()) {
      bytes even, odd;
      joined<F>(p, even, odd);
      out[0] = turned_joined<0>(even, odd);
      out[1] = turned_joined<1>(even, odd);
      out[2] = turned_joined<2>(even, odd);
      out[3] = turned_joined<3>(even, odd);
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
  static FEWBIT_INLINE bytes either(bytes a, bytes b) { return _mm512_or_si512(a, b); }
  template <Codebook book, int bias>
  static FEWBIT_INLINE bytes lookup(bytes v) {
    static constexpr auto table = [] {
      std::array<uint8_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = static_cast<uint8_t>(book.values[i] + bias);
      return t;
    }();
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(table.data())), v);
  }
  template <bool shift, int bias>
  static FEWBIT_INLINE bytes signed_codes(const uint8_t* p, const uint8_t* signs) {
    const __mmask64 is_set = fewbit::load<uint64_t>(signs);
    const bytes v = _mm512_load_si512(p), base = _mm512_set1_epi8(bias);
    if constexpr (shift) {  // 8 * v + 1 + bias, 2 less where the bit is set
      const bytes eight = _mm512_add_epi8(_mm512_slli_epi16(_mm512_add_epi8(v, _mm512_set1_epi8(1)), 3),
                                          _mm512_set1_epi8(bias + 1 - 8));
      return _mm512_mask_sub_epi8(eight, is_set, eight, _mm512_set1_epi8(2));
    } else {
      return _mm512_mask_sub_epi8(_mm512_add_epi8(base, v), is_set, base, v);
    }
  }
  // The points of a grid as bytes, `bias` added.
  template <class F, int bias>
  struct Table {
    static constexpr int width = F::codes.width, count = sizeof(F::points.values) / width;
    alignas(64) static constexpr auto bytes_of = [] {
      std::array<uint8_t, static_cast<size_t>(count) * width> out{};
      for (int i = 0; i < count * width; ++i) {
        const int v = F::points.values[i / width][i % width];
        out[i] = static_cast<uint8_t>((F::codes.shift.used > 0 ? 8 * v + 1 : v) + bias);
      }
      return out;
    }();
  };
  // The eighth sign of every eight, which makes the number of minus signs even.
  static FEWBIT_INLINE uint64_t with_even_signs(uint64_t seven) {
    uint64_t v = seven ^ seven >> 4;
    v ^= v >> 2;
    v ^= v >> 1;
    return seven | (v & 0x0101010101010101ull) << 7;
  }
  template <class F, int j, bool across, int bias>
  static FEWBIT_INLINE bytes points(const uint8_t* p) {
    using G = GridShape<F>;
    static constexpr PointIndex at = G::index(j, across);
    static constexpr BitOf bit = G::bit(j, across);
    constexpr bool whole = at.pieces == 1 && at.mask[0] == 255 && at.shift[0] == 0;
    bytes i = _mm512_shuffle_epi8(four<at.window[0][0], at.window[0][1], at.window[0][2], at.window[0][3], F::bytes>(p),
                                  load(at.byte[0]));
    if constexpr (at.pieces == 2) {
      i = _mm512_or_si512(
          i, _mm512_shuffle_epi8(four<at.window[1][0], at.window[1][1], at.window[1][2], at.window[1][3], F::bytes>(p),
                                 load(at.byte[1])));
    }
    if constexpr (!whole) {
      i = _mm512_and_si512(_mm512_srlv_epi16(i, _mm512_loadu_si512(at.shift)), _mm512_loadu_si512(at.mask));
      if constexpr (at.pieces == 2) i = _mm512_madd_epi16(i, _mm512_loadu_si512(at.weight));
    }
    bytes v;
    if constexpr (F::codes.width == 8)
      v = _mm512_i64gather_epi64(i, Table<F, bias>::bytes_of.data(), 8);
    else
      v = _mm512_i32gather_epi32(i, Table<F, bias>::bytes_of.data(), 4);
    const bytes source = four<bit.window[0], bit.window[1], bit.window[2], bit.window[3], F::bytes>(p);
    __mmask64 is_set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(source, load(bit.byte)), load(bit.bit));
    if constexpr (G::even_signs) is_set = with_even_signs(is_set);
    if constexpr (F::codes.shift.used > 0)
      return _mm512_mask_sub_epi8(v, is_set, v, _mm512_set1_epi8(2));
    else
      return _mm512_mask_sub_epi8(v, is_set, _mm512_set1_epi8(2 * bias), v);
  }
  // One piece of small integers, one in each lane of `size` bytes, at its place in it; other bits may be left.
  template <Fields f, int size>
  static FEWBIT_INLINE bytes fields(const uint8_t* p) {
    static_assert(f.fits);
    alignas(64) static constexpr auto index = [] {
      std::array<uint8_t, 64> out{};
      for (int i = 0; i < 64; ++i) out[i] = f.byte[i];
      return out;
    }();
    using Lane = std::conditional_t<size == 2, uint16_t, uint32_t>;
    alignas(64) static constexpr auto shift = [] {
      std::array<Lane, 64 / sizeof(Lane)> out{};
      for (int i = 0; i < 64 / size; ++i) {
        const int up = f.dst - f.shift[i];
        out[i * size / sizeof(Lane)] = static_cast<Lane>(size > 2 ? -up & 31 : f.dst > 0 ? up : -up);
      }
      return out;
    }();
    bytes v;
    if constexpr (f.spread)
      v = _mm512_cvtepu32_epi64(load32(p + f.window[0]));
    else
      v = four<f.window[0], f.window[1], f.window[2], f.window[3], f.room>(p);
    if constexpr (!f.plain) v = _mm512_shuffle_epi8(v, load(index.data()));
    if constexpr (f.whole) return v;
    const bytes by = load(reinterpret_cast<const uint8_t*>(shift.data()));
    if constexpr (size > 2) return _mm512_rorv_epi32(v, by);
    if constexpr (f.dst > 0) return _mm512_sllv_epi16(v, by);
    if constexpr (!f.even) return _mm512_srlv_epi16(v, by);
    return f.shift[0] > 0 ? _mm512_srli_epi16(v, f.shift[0]) : v;
  }
  // The same, and nothing else in the lane; with `low`, added to that.
  template <Fields f, int size>
  static FEWBIT_INLINE bytes only_fields(const uint8_t* p) {
    const bytes v = fields<f, size>(p);
    constexpr bool clean = f.whole || (size == 2 && f.even && f.dst == 0 && f.shift[0] + f.bits == 16);
    return clean ? v : _mm512_and_si512(v, field_mask<f, size>());
  }
  template <Fields f, int size>
  static FEWBIT_INLINE bytes with_fields(bytes low, const uint8_t* p) {
    return _mm512_ternarylogic_epi32(low, fields<f, size>(p), field_mask<f, size>(), 0xF8);
  }
  template <Fields f, int size>
  static FEWBIT_INLINE bytes field_mask() {
    constexpr int mask = ((1 << f.bits) - 1) << f.dst;
    return size == 2   ? _mm512_set1_epi16(static_cast<short>(mask))
           : size == 4 ? _mm512_set1_epi32(mask)
                       : _mm512_set1_epi64(mask);
  }
  // 32 bytes, one in each word.
  static FEWBIT_INLINE bytes bytes_in_words(const uint8_t* p) { return _mm512_cvtepu8_epi16(load32(p)); }
  // Word c of every four, in lanes of 8 bytes.
  template <int c>
  static FEWBIT_INLINE bytes fourth(bytes words) {
    if constexpr (c == 3) return _mm512_srli_epi64(words, 48);
    return _mm512_and_si512(_mm512_srli_epi64(words, 16 * c), _mm512_set1_epi64(0xFFFF));
  }
  // Points of a table. In assembly, since gcc 12 neither clears what is written to nor sets the mask in place.
  template <int width>
  static FEWBIT_INLINE bytes gather(bytes index, const uint8_t* table) {
    bytes v;
    __mmask16 all;
    if constexpr (width == 8)
      asm("vpxord %0, %0, %0\n\tkxnorw %1, %1, %1\n\tvpgatherqq (%2,%3,8), %0%{%1%}"
          : "=&v"(v), "=&Yk"(all)
          : "r"(table), "v"(index));
    else
      asm("vpxord %0, %0, %0\n\tkxnorw %1, %1, %1\n\tvpgatherdd (%2,%3,4), %0%{%1%}"
          : "=&v"(v), "=&Yk"(all)
          : "r"(table), "v"(index));
    return v;
  }
  // Words of seven bits, with an eighth that makes the number of ones even.
  static FEWBIT_INLINE bytes with_even_bit(bytes seven) {
    alignas(64) static constexpr auto odd = [] {  // whether the number of ones of i is, for every 16-byte lane
      std::array<uint8_t, 64> out{};
      for (int i = 0; i < 64; ++i) out[i] = (i ^ i >> 1 ^ i >> 2 ^ i >> 3) & 1 ? 0x80 : 0;
      return out;
    }();
    const bytes table = load(odd.data());
    const bytes four = _mm512_xor_si512(seven, _mm512_srli_epi16(seven, 4));  // what is above them does not count
    return _mm512_or_si512(seven, _mm512_shuffle_epi8(table, four));
  }
  // The bits of word c of every four, of which each has 8.
  using Bits = __mmask64;
  template <int c>
  static FEWBIT_INLINE Bits bits_of_eights(bytes words) {
    const __m512i index =
        _mm512_set4_epi32(0x08080808 + 0x02020202 * c, 0x08080808 + 0x02020202 * c, 0x02020202 * c, 0x02020202 * c);
    return _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, index), _mm512_set1_epi64(0x8040201008040201ll));
  }
  // Activations change their signs where a bit is set.
  static FEWBIT_INLINE bytes dot_add_signed(bytes acc, bytes q, const int8_t* x, Bits minus) {
    const bytes v = _mm512_load_si512(x);
    return _mm512_dpbusd_epi32(acc, q, _mm512_mask_sub_epi8(v, minus, _mm512_setzero_si512(), v));
  }
  // What small integers of up to four bits stand for.
  template <Fields f>
  static FEWBIT_INLINE f32 looked_up(const uint8_t* p, const float* table) {
    return _mm512_permutexvar_ps(fields<f, 4>(p), _mm512_load_ps(table));
  }
  template <bool odd>
  static FEWBIT_INLINE f32 twice_each(f32 v) {  // the even lanes, or the odd ones
    return odd ? _mm512_movehdup_ps(v) : _mm512_moveldup_ps(v);
  }
  // Base-3 digits of 32 bytes, then 16, five each, then of four bytes, four each: digit n of a byte b is the whole part
  // of 3 times the fraction that 3^n b / 256 leaves.
  static constexpr int power_of_3(int code) {
    const int digit = code < 160 ? code / 32 : code < 240 ? (code - 160) / 16 : (code - 240) / 4;
    return digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
  }
  template <Trits t, int j>
  static FEWBIT_INLINE bytes digits(const uint8_t* p) {
    static_assert(t.parts[0].bytes == 32 && t.parts[0].digits == 5 && t.parts[1].bytes == 16 &&
                  t.parts[1].digits == 5 && t.parts[2].bytes == 4 && t.parts[2].digits == 4);
    alignas(64) static constexpr auto power = [] {
      std::array<uint16_t, 32> out{};
      for (int w = 0; w < 32; ++w) out[w] = static_cast<uint16_t>(power_of_3(64 * j + 2 * w));
      return out;
    }();
    bytes v;
    if constexpr (j < 2) {
      v = _mm512_broadcast_i64x4(load32(p + t.parts[0].first));
    } else {
      v = _mm512_broadcast_i32x4(load16(p + t.parts[1].first));
      if constexpr (j == 2) v = _mm512_inserti64x4(v, load32(p + t.parts[0].first), 0);
      if constexpr (j == 3) v = _mm512_mask_set1_epi32(v, 0xF000, fewbit::load<int32_t>(p + t.parts[2].first));
    }
    const bytes three = _mm512_set1_epi16(3), by = load(reinterpret_cast<const uint8_t*>(power.data()));
    const bytes even = _mm512_mulhi_epu16(_mm512_mullo_epi16(_mm512_slli_epi16(v, 8), by), three);
    const bytes high = _mm512_and_si512(v, _mm512_set1_epi16(static_cast<short>(0xFF00)));
    const bytes odd = _mm512_mulhi_epu16(_mm512_mullo_epi16(high, by), three);
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
  }
  static FEWBIT_INLINE bytes flip(bytes v) { return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80))); }
  template <bool is_signed>
  static FEWBIT_INLINE f32 dot(bytes q, const int8_t* x) {
    static_assert(!is_signed);
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), q, _mm512_load_si512(x)));
  }
  using ints = __m512i;
  static FEWBIT_INLINE ints no_ints() { return _mm512_setzero_si512(); }
  static FEWBIT_INLINE ints dot_add(ints acc, bytes q, const int8_t* x) {
    return _mm512_dpbusd_epi32(acc, q, _mm512_load_si512(x));
  }
  template <bool is_signed>
  static FEWBIT_INLINE ints lane_dot(ints acc, bytes w, const int8_t* four) {  // the same four for every lane
    static_assert(!is_signed);
    return _mm512_dpbusd_epi32(acc, w,
                               _mm512_set1_epi32(fewbit::load<int32_t>(reinterpret_cast<const uint8_t*>(four))));
  }
  static FEWBIT_INLINE bytes thrice(bytes v) { return _mm512_add_epi8(_mm512_add_epi8(v, v), v); }
  static FEWBIT_INLINE ints thrice_less(ints a, ints b) {  // 3 a - b
    return _mm512_sub_epi32(_mm512_add_epi32(_mm512_add_epi32(a, a), a), b);
  }
  // L rows of L dwords, `stride` bytes apart, turned on their side.
  static FEWBIT_INLINE void transpose(const uint8_t* in, size_t stride, uint8_t* out) {
    __m512i r[16];
    for (size_t i = 0; i < 16; ++i) r[i] = load(in + i * stride);
    transpose16(r);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + 64 * i, r[i]);
  }
  // 16 bytes of each of 16 rows: out[d] holds dword d of every row.
  static FEWBIT_INLINE bytes quarter_rows(const uint8_t* p, size_t stride) {  // of every fourth row
    bytes v = _mm512_broadcast_i32x4(load16(p));
    v = _mm512_mask_broadcast_i32x4(v, 0xF0, load16(p + 4 * stride));
    v = _mm512_mask_broadcast_i32x4(v, 0xF00, load16(p + 8 * stride));
    return _mm512_mask_broadcast_i32x4(v, 0xF000, load16(p + 12 * stride));
  }
  static FEWBIT_INLINE void turn(const uint8_t* p, size_t stride, bytes* out) {
    const bytes a = quarter_rows(p, stride), b = quarter_rows(p + stride, stride);
    const bytes c = quarter_rows(p + 2 * stride, stride), d = quarter_rows(p + 3 * stride, stride);
    const bytes e = _mm512_unpacklo_epi32(a, b), f = _mm512_unpackhi_epi32(a, b);
    const bytes g = _mm512_unpacklo_epi32(c, d), h = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(e, g);
    out[1] = _mm512_unpackhi_epi64(e, g);
    out[2] = _mm512_unpacklo_epi64(f, h);
    out[3] = _mm512_unpackhi_epi64(f, h);
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
  // A float of each of 16 rows, and the f16 after it. With two bytes before it, it may be the last that can be read.
  template <Real r, bool offset, bool room_before>
  static FEWBIT_INLINE void reals(const uint8_t* p, size_t stride, f32& scale, f32& after) {
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(row, _mm512_set1_epi32(static_cast<int>(stride)));
    constexpr bool high = r == Real::f16 && room_before;
    const __m512i v = _mm512_i32gather_epi32(at, p - (high ? 2 : 0), 1);
    if constexpr (r == Real::f16) {
      scale = halves_of<high>(v);
      if constexpr (offset) after = halves_of<true>(v);
    } else if constexpr (r == Real::e8m0) {
      const __m512i e = _mm512_and_si512(v, _mm512_set1_epi32(0xFF));
      scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_subs_epu16(e, _mm512_set1_epi32(1)), 23));
    } else {
      static_assert(r == Real::f32);
      scale = _mm512_castsi512_ps(v);
    }
  }
  static FEWBIT_INLINE void store(uint8_t* p, bytes v) { _mm512_store_si512(p, v); }
  static FEWBIT_INLINE f32 to_floats(ints a) { return _mm512_cvtepi32_ps(a); }
  template <int part, bool is_signed>
  static FEWBIT_INLINE f32 widen(bytes v) {
    const __m128i quarter = _mm512_extracti32x4_epi32(v, part);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(quarter) : _mm512_cvtepu8_epi32(quarter));
  }
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
  static FEWBIT_INLINE __m512i two_that_stay(__m512i window) {
    static constexpr TwoPieces w = two_pieces<t, true>();
    const __m512i v = _mm512_and_si512(_mm512_shuffle_epi8(window, load(w.byte)), _mm512_loadu_si512(w.mask));
    return _mm512_dpwssd_epi32(_mm512_set1_epi32(-(t.zero[0] << t.stay())), v, _mm512_loadu_si512(w.weight));
  }
  template <Small t>
  static FEWBIT_INLINE __m512i one_byte(const uint8_t* p) {
    if constexpr (t.in_order()) return _mm512_cvtepu8_epi32(load16(p));
    static constexpr TwoPieces w = two_pieces<t>();  // of which there is only the first
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(p)), load(w.byte));
  }
  // `stays`: times 2 to the power of t.stay().
  template <Small t, bool stays = false>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    __m512i v;
    if constexpr (t.in_order() && t.is_signed) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p + t.window)));
    } else if constexpr (t.alike() && !t.is_signed) {
      constexpr int mask = t.mask[0][0], shift = t.shift[0][0], up = stays ? t.stay() : 0;
      v = one_byte<t>(p + t.window);
      if constexpr (mask == 15 && shift == 0 && t.zero[0] == 0) {
        const f32 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return _mm512_permutexvar_ps(v, numbers);  // looks at four bits only
      }
      if constexpr (up < shift) v = _mm512_srli_epi32(v, shift - up);
      if constexpr (up > 0 || mask << shift < 0x80) v = _mm512_and_si512(v, _mm512_set1_epi32(mask << up));
    } else if constexpr (stays && t.stay() > 0) {
      return _mm512_cvtepi32_ps(two_that_stay<t>(_mm512_broadcast_i32x4(load16(p + t.window))));
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
    constexpr int zero = t.is_signed || t.times != 1 ? 0 : t.zero[0] << (stays ? t.stay() : 0);
    if constexpr (zero != 0) v = _mm512_sub_epi32(v, _mm512_set1_epi32(zero));
    return _mm512_cvtepi32_ps(v);
  }
  // Four f16 as floats in memory, from where a load puts one of them in every lane: that leaves the ports that compute
  // alone. gcc 12 would load the f16 first, and shuffle.
  struct alignas(16) Four {
    float v[4];
  };
  static FEWBIT_INLINE Four four_halves(const uint8_t* p) {
    __m128 floats;
    asm("vcvtph2ps %1, %0" : "=v"(floats) : "m"(*reinterpret_cast<const uint8_t (*)[8]>(p)));
    Four out;
    _mm_store_ps(out.v, floats);
    asm("" : "+m"(out));
    return out;
  }
  // The f16 in every lane. With six bytes before it, four are converted.
  template <bool room_before = false>
  static FEWBIT_INLINE f32 half(const uint8_t* p) {
    if constexpr (room_before) {
      const Four four = four_halves(p - 6);
      return _mm512_set1_ps(four.v[3]);
    }
    return _mm512_cvtph_ps(_mm256_set1_epi16(fewbit::load<int16_t>(p)));
  }
  static FEWBIT_INLINE f32 half_of_8(const uint8_t* p) {  // the same if eight bytes can be read
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static FEWBIT_INLINE f32 half_pair(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_set1_epi32(fewbit::load<int32_t>(p)));
  }
  template <bool room_before>
  static FEWBIT_INLINE void two_halves(const uint8_t* p, f32& a, f32& b) {  // each in every lane
    if constexpr (room_before) {
      const Four four = four_halves(p - 4);
      a = _mm512_set1_ps(four.v[2]);
      b = _mm512_set1_ps(four.v[3]);
      return;
    }
    const f32 pair = half_pair(p);
    a = _mm512_moveldup_ps(pair);
    b = _mm512_movehdup_ps(pair);
  }
  static FEWBIT_INLINE float half_from(uint16_t h) { return _cvtsh_ss(h); }
  template <Real r>
  static FEWBIT_INLINE float real(const uint8_t* p) {
    if constexpr (r == Real::f16)
      return _cvtsh_ss(fewbit::load<uint16_t>(p));
    else
      return read_real(r, p);
  }
  // Half of 2^(e - 127) for eight exponents; 0 where that is no normal number.
  static FEWBIT_INLINE __m256i powers(__m256i e) {
    return _mm256_slli_epi32(_mm256_subs_epu16(e, _mm256_set1_epi32(1)), 23);
  }
  // Words that lie 32 values apart, one for each of eight groups: which 64-byte window of the span holds each of them,
  // at which of its dwords, and how far up in that.
  struct Words {
    int windows = 0, at[8] = {}, window[8] = {}, shift[8] = {};
    std::array<int, 16> index[2] = {};  // for windows 0 and 1, 2 and 3
  };
  template <int block, int size>
  static constexpr Words words() {
    Words out;
    constexpr int last = kSpan / block * size - 64;
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
    if constexpr (kSpan / block * size < 64) {
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
  template <Real r, int block, int size, bool offset, bool room_before>
  static FEWBIT_INLINE void strided(const uint8_t* p, f32* out) {
    if constexpr (block == kSpan && !offset) {
      if constexpr (r == Real::f16)
        out[0] = half<room_before>(p);
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
  template <bool offset>
  static FEWBIT_INLINE void deal(f32x8 scales, f32x8 offsets, int shift, f32* out, std::bool_constant<offset>) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i lane = _mm512_srlv_epi32(pairs, _mm512_set1_epi32(shift));
    out[0] = _mm512_permutexvar_ps(lane, _mm512_castps256_ps512(scales));
    if constexpr (offset) {
      out[0] = _mm512_mask_permutexvar_ps(out[0], 0xAAAA, lane, _mm512_castps256_ps512(offsets));
    }
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
  static FEWBIT_INLINE bytes magnitudes(const float* x) {  // of 32 floats, the larger ones of two and two
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const bytes a = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), mask);
    return _mm512_max_epu32(a, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), mask));
  }
  static FEWBIT_INLINE bytes larger32(bytes a, bytes b) {
    return _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
  static FEWBIT_INLINE bytes larger64(bytes a, bytes b) {
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  // The bits of the largest magnitude of every 32 of 256 floats.
  static FEWBIT_INLINE void largest(const float* x, uint32_t* out) {
    const bytes low =
        larger64(larger32(magnitudes(x), magnitudes(x + 32)), larger32(magnitudes(x + 64), magnitudes(x + 96)));
    const bytes high = larger64(larger32(magnitudes(x + 128), magnitudes(x + 160)),
                                larger32(magnitudes(x + 192), magnitudes(x + 224)));
    const bytes t = _mm512_max_epu32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
    const bytes all = _mm512_max_epu32(t, _mm512_shuffle_i32x4(t, t, 0xB1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(all));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4), _mm512_extracti32x4_epi32(all, 2));
  }
  static FEWBIT_INLINE void quantize_16(const float* x, float by, int8_t* out) {
    const __mmask16 some = by == 0 ? 0 : 0xFFFF;
    const __m512i v = _mm512_maskz_cvtps_epi32(some, _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(v));
  }
  // The sums of every 16 of 256 codes.
  static FEWBIT_INLINE void sums(const int8_t* q, int* out) {
    const auto fours = [&](int j) FEWBIT_LAMBDA_INLINE {
      return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q + 64 * j));
    };
    const __m512i a = fours(0), b = fours(1), c = fours(2), d = fours(3);
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, all));
  }
  // Dwords of 256 bytes in another order: `at` gives, for each lane of `out`, the number of a dword.
  template <std::array<int, 64> at>
  static FEWBIT_INLINE void reorder(const int8_t* q, int8_t* out) {
    static constexpr auto index = at;
    const __m512i a = _mm512_load_si512(q), b = _mm512_load_si512(q + 64);
    const __m512i c = _mm512_load_si512(q + 128), d = _mm512_load_si512(q + 192);
    for (int v = 0; v < 4; ++v) {
      const __m512i i = _mm512_loadu_si512(index.data() + 16 * v);  // bit 5 tells in which pair
      const __mmask16 later = _mm512_test_epi32_mask(i, _mm512_set1_epi32(32));
      const __m512i low = _mm512_permutex2var_epi32(a, i, b);
      _mm512_store_si512(out + 64 * v, _mm512_mask_mov_epi32(low, later, _mm512_permutex2var_epi32(c, i, d)));
    }
  }
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

  template <Real r>
  static FEWBIT_INLINE f32 splat_real(const uint8_t* p) {
    if constexpr (r == Real::f16)
      return half<>(p);
    else
      return _mm512_set1_ps(read_real(r, p));
  }
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
      __m128i v = load16(p + g.at);
      if constexpr (g.bits == 8) return v;
      constexpr int down = g.shift - g.dst;
      if constexpr (down > 0) v = _mm_srli_epi16(v, down > 0 ? down : 0);
      if constexpr (down < 0) v = _mm_slli_epi16(v, down < 0 ? -down : 0);
      return _mm_and_si128(v, _mm_set1_epi8(static_cast<char>(((1 << g.bits) - 1) << g.dst)));
    }
  }
  // What 32 codes of four bits stand for: those in the low halves of 16 bytes, then those in the high ones.
  static FEWBIT_INLINE void nibbles(f32 table, const uint8_t* p, f32* out) {
    const __m512i v = _mm512_cvtepu8_epi32(load16(p));
    out[0] = _mm512_permutexvar_ps(v, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
  }
  static FEWBIT_INLINE __m128i either16(__m128i a, __m128i b) { return _mm_or_si128(a, b); }
  template <Codebook book>
  static FEWBIT_INLINE __m128i lookup16(__m128i v) {
    alignas(16) static constexpr Codebook table = book;
    return _mm_shuffle_epi8(load16(table.values), v);
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
