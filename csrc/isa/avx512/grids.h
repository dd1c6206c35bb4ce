// Points of grids, their signs and scales; digits to the base of 3.

struct Grids : Codes {
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
  template <class F, int j, int bias>
  static FEWBIT_INLINE bytes points(const uint8_t* p) {
    using G = GridShape<F>;
    static_assert(G::can_gather());
    static constexpr PointIndex at = G::index(j);
    static constexpr BitOf bit = G::bit(j);
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
    const bytes v = points_at<F::codes.width>(i, Table<F, bias>::bytes_of.data());
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
  // 64 bytes as words: of every eight the first four, and the others.
  static FEWBIT_INLINE void bytes_in_halves(const uint8_t* p, bytes* out) {
    const bytes v = load(p), none = _mm512_setzero_si512();
    const bytes low = _mm512_unpacklo_epi8(v, none), high = _mm512_unpackhi_epi8(v, none);
    out[0] = _mm512_unpacklo_epi64(low, high);
    out[1] = _mm512_unpackhi_epi64(low, high);
  }
  // Adds `what` where a bit of 64 is set.
  static FEWBIT_INLINE void add_to_halves(uint64_t where, int what, bytes* to) {
    const auto first = static_cast<__mmask32>(_pext_u64(where, 0x0F0F0F0F0F0F0F0Full));
    const auto other = static_cast<__mmask32>(_pext_u64(where, 0xF0F0F0F0F0F0F0F0ull));
    const bytes v = _mm512_set1_epi16(static_cast<short>(what));
    to[0] = _mm512_mask_add_epi16(to[0], first, to[0], v);
    to[1] = _mm512_mask_add_epi16(to[1], other, to[1], v);
  }
  // Words of a table of `count`, each at its index.
  template <int count>
  static FEWBIT_INLINE bytes words_at(bytes index, const uint16_t* table) {
    if constexpr (count == 64) {
      return _mm512_permutex2var_epi16(_mm512_load_si512(table), index, _mm512_load_si512(table + 32));
    } else {
      const __mmask32 above = _mm512_test_epi16_mask(index, _mm512_set1_epi16(count / 2));
      const bytes low = words_at<count / 2>(index, table), high = words_at<count / 2>(index, table + count / 2);
      return _mm512_mask_blend_epi16(above, low, high);
    }
  }
  // In eight bytes: the words from `first` on, `each` times each; then every byte `bits` bits further than that of the
  // same word before, and what these bits stand for.
  template <int first, int each, int bits, auto list>
  static FEWBIT_INLINE bytes values_of_words(bytes words) {
    alignas(64) static constexpr auto index = [] {
      std::array<uint8_t, 64> out{};
      for (int i = 0; i < 64; ++i)
        out[i] = static_cast<uint8_t>(i % 16 / 8 * 8 + 2 * (first + i % 8 / 2 / each) + i % 2);
      return out;
    }();
    alignas(64) static constexpr auto shift = [] {
      std::array<uint16_t, 32> out{};
      for (int w = 0; w < 32; ++w) out[w] = static_cast<uint16_t>(bits * (w % each));
      return out;
    }();
    alignas(16) static constexpr auto values = list;
    const bytes v = _mm512_srlv_epi16(_mm512_shuffle_epi8(words, load(index.data())), _mm512_load_si512(shift.data()));
    const bytes level = _mm512_and_si512(v, _mm512_set1_epi8((1 << bits) - 1));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(values.values)), level);
  }
  // Points of a table, each at its index.
  template <int width>
  static FEWBIT_INLINE bytes points_at(bytes index, const uint8_t* table) {
    return kGathers ? gather<width>(index, table) : one_by_one<width>(index, table);
  }
  // In assembly, since gcc 12 neither clears what is written to nor sets the mask in place.
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
  // Indices go through memory in two halves: the upper half of a whole vector would not be forwarded.
  template <int width>
  static FEWBIT_INLINE bytes one_by_one(bytes index, const uint8_t* table) {
    alignas(64) uint8_t at[64];
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), _mm512_castsi512_si256(index));
    _mm256_store_si256(reinterpret_cast<__m256i*>(at + 32), _mm512_extracti64x4_epi64(index, 1));
    asm("" : "+m"(at));
    __m256i low = _mm256_castsi128_si256(sixteen_bytes<width>(at, table));
    low = _mm256_inserti128_si256(low, sixteen_bytes<width>(at + 16, table), 1);
    __m256i high = _mm256_castsi128_si256(sixteen_bytes<width>(at + 32, table));
    high = _mm256_inserti128_si256(high, sixteen_bytes<width>(at + 48, table), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  template <int width>
  static FEWBIT_INLINE __m128i sixteen_bytes(const uint8_t* at, const uint8_t* table) {
    if constexpr (width == 8) {
      const auto* one = reinterpret_cast<const __m128i*>(table + 8 * fewbit::load<uint64_t>(at));
      const auto* other = reinterpret_cast<const __m64*>(table + 8 * fewbit::load<uint64_t>(at + 8));
      return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64(one)), other));
    } else {
      __m128i v = _mm_cvtsi32_si128(point(at, table));
      v = _mm_insert_epi32(v, point(at + 4, table), 1);
      v = _mm_insert_epi32(v, point(at + 8, table), 2);
      return _mm_insert_epi32(v, point(at + 12, table), 3);
    }
  }
  static FEWBIT_INLINE int32_t point(const uint8_t* at, const uint8_t* table) {
    return fewbit::load<int32_t>(table + size_t{4} * fewbit::load<uint32_t>(at));
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
  static FEWBIT_INLINE Bits grid_bits(bytes words) {
    const __m512i index =
        _mm512_set4_epi32(0x08080808 + 0x02020202 * c, 0x08080808 + 0x02020202 * c, 0x02020202 * c, 0x02020202 * c);
    return _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, index), _mm512_set1_epi64(0x8040201008040201ll));
  }
  // Activations that change their signs where a bit is set.
  static FEWBIT_INLINE bytes with_bits(const int8_t* x, Bits minus) {
    const bytes v = _mm512_load_si512(x);
    return _mm512_mask_sub_epi8(v, minus, _mm512_setzero_si512(), v);
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
  // Digit n of a byte b is the whole part of 3 times the fraction that 3^n b / 256 leaves.
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
  static FEWBIT_INLINE bytes digit(bytes v) {  // the first one of every byte
    const __mmask64 some = _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(86));
    const __mmask64 two = _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(171)));
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(some, _mm512_set1_epi8(1)), two, _mm512_set1_epi8(2));
  }
  static FEWBIT_INLINE bytes thrice(bytes v) { return _mm512_add_epi8(_mm512_add_epi8(v, v), v); }
  static FEWBIT_INLINE ints thrice_less(ints a, ints b) {  // 3 a - b
    return _mm512_sub_epi32(_mm512_add_epi32(_mm512_add_epi32(a, a), a), b);
  }
};
