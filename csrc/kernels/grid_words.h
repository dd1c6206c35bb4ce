// Points of grids from tables that lie in vectors, as words of 16 bits: 32 points at once. Where gathers are slow this
// takes a half to two thirds of the time of reading them one by one (fewbit bench kernels -f iq2_xxs -f iq3_xxs).

template <class F>
struct GridTables {
  using I = typename Own<F>::type;
  using L = GridLevels<F>;
  static constexpr Grid grid = F::codes;
  static constexpr int width = grid.width, bits = 16 / width, count = L::count;
  static constexpr bool can = Isa::has_tables && grid.signs.used > 0 && L::list.used <= 1 << bits && count <= 512 &&
                              (width == 8 || L::in_bytes());

  // Even values in the low byte, odd ones in the high byte.
  alignas(64) static constexpr auto table = [] {
    std::array<uint16_t, count> out{};
    for (int i = 0; i < count * width; ++i) {
      const int value = i % width, level = L::list.find(F::points.values[i / width][value]);
      out[i / width] |= static_cast<uint16_t>(level << (value % 2 * 8 + value / 2 * bits));
    }
    return out;
  }();
  // The points of a k-block. Of eight values: number 4 g + i in word i of eight bytes g; `words` has their numbers. Of
  // four: 8 g + i in the first vector, 8 g + 4 + i in the second.
  template <class bytes>
  static FEWBIT_INLINE void points(const uint8_t* p, bytes* words) {
    if constexpr (width == 4) {
      I::bytes_in_halves(p + grid.index.piece(0, 0).bit / 8, words);
      if constexpr (count > 256) {
        const auto above = load<uint64_t>(p + grid.index.piece(1, 0).bit / 8);
        I::add_to_halves(above, 256, words);
      }
      words[1] = I::template words_at<count>(words[1], table.data());
    }
    words[0] = I::template words_at<count>(words[0], table.data());
  }
  // Vector c of values, transposed: see GridShape::element.
  template <int c, class bytes>
  static FEWBIT_INLINE bytes values(const bytes* points) {
    constexpr int first = width == 8 ? c : c % 2 * 2, each = width / 2;  // words of a point
    return I::template values_of_words<first, each, bits, L::list>(points[width == 8 ? 0 : c / 2]);
  }
};
