// Points of grids from tables that lie in vectors (AVX-512 VBMI): each point of four values is 16 bits. That is faster
// than to gather them: by a quarter for iq3_xxs (fewbit bench kernels -f iq3_xxs --isa avx512). Points of eight values
// are gathered faster than they are put together from two bits each (Sapphire Rapids).

template <class F>
struct GridTables {
  using L = GridLevels<F>;
  static constexpr Grid grid = F::codes;
  static constexpr int width = grid.width, bits = 16 / width, count = L::count;
  static constexpr bool can = grid.signs.used > 0 && L::list.used <= 8 && L::in_bytes();

  // All first bytes, then all second ones.
  alignas(64) static constexpr auto table = [] {
    std::array<uint8_t, static_cast<size_t>(count) * width / 2> out{};
    for (int i = 0; i < count * width; ++i) {
      const int value = i % width, point = i / width, level = L::list.find(F::points.values[point][value]);
      out[value / 2 * count + point] |= static_cast<uint8_t>(level << (bits * (value % 2)));
    }
    return out;
  }();
  static FEWBIT_INLINE __m512i of_256(__m512i number, const uint8_t* from) {
    const __m512i a = _mm512_permutex2var_epi8(_mm512_load_si512(from), number, _mm512_load_si512(from + 64));
    const __m512i b = _mm512_permutex2var_epi8(_mm512_load_si512(from + 128), number, _mm512_load_si512(from + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(number), a, b);
  }
  static FEWBIT_INLINE __m512i of_all(__m512i number, const uint8_t* p, const uint8_t* from) {
    const __m512i v = of_256(number, from);
    if constexpr (count == 256) return v;
    const auto above = load<uint64_t>(p + grid.index.piece(grid.index.pieces(0) - 1, 0).bit / 8);
    return _mm512_mask_blend_epi8(above, v, of_256(number, from + 256));
  }
  // The points of a k-block: in the first vector numbers 8 g to 8 g + 3 in eight bytes g, in the second the next four.
  static FEWBIT_INLINE void points(const uint8_t* p, __m512i* out) {
    const __m512i number = _mm512_loadu_si512(p + grid.index.piece(0, 0).bit / 8);
    const __m512i low = of_all(number, p, table.data()), high = of_all(number, p, table.data() + count);
    const __m512i a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
  }
  // Vector c of values, transposed: see GridShape::element.
  template <int c>
  static FEWBIT_INLINE __m512i values(const __m512i* points) {
    alignas(64) static constexpr auto first_bit = [] {
      std::array<uint8_t, 64> out{};
      for (int i = 0; i < 64; ++i) out[i] = static_cast<uint8_t>(c % 2 * 32 + i % 8 * bits);
      return out;
    }();
    alignas(64) static constexpr auto value_of = [] {  // what is above the bits does not count
      std::array<int8_t, 64> out{};
      for (int i = 0; i < 64; ++i) out[i] = L::list.values[i % 16];
      return out;
    }();
    const __m512i level = _mm512_multishift_epi64_epi8(_mm512_load_si512(first_bit.data()), points[c / 2]);
    return _mm512_permutexvar_epi8(level, _mm512_load_si512(value_of.data()));
  }
};
