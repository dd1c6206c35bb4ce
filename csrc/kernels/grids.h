// A k-block of grid points times 8-bit activations. Gathers alone take more than half of the time, and what they leave
// of the vector units and load ports bounds the rest. So that is done for a whole k-block at once where it can be, and
// values are taken eight at a time: each lane of all four vectors belongs to one group of 32, or to one half of it.
// Signs are given to the activations; then codes have no zero point. Nothing is stored: gathers would wait for it.

template <class F>
struct GridKBlock {
  using I = typename Own<F>::type;
  using G = GridShape<F>;
  static constexpr const Grid& grid = F::codes;
  using T = GridTables<F>;
  static constexpr int width = grid.width;
  static constexpr bool by_16 = F::group == 16, has_signs = grid.signs.used > 0;
  // Grids without signs have 8 v + 1 or 8 v - 1 for each digit v. A bit tells which, for a group or for a point. That
  // of a group goes into the factor of the sum of activations: it is read with the scale, whose neighbour it must be.
  // That of a point becomes the highest of its index.
  static constexpr bool moves_points = !has_signs && grid.shift_every == width;
  static constexpr int zero = has_signs ? 0 : moves_points ? 9 : 8, times = has_signs || moves_points ? 1 : 8;

  static constexpr Ints index = [] {
    Ints out = grid.index;
    if (moves_points) out.planes[out.used - 1].bits += 1;
    return out;
  }();
  static constexpr int pieces = index.pieces(0);
  static constexpr bool in_words = width == 8 && (pieces > 1 || index.bits() > 8);

  // Whether the bit that moves points lies right after these integers.
  static constexpr bool right_after(const Ints& what, int every) {
    for (int i = 0; i < kBlockK / every; ++i) {
      const Piece last = what.piece(what.pieces(i) - 1, i);
      if (grid.shift.piece(0, i).bit != last.bit + last.bits) return false;
    }
    return grid.shift_every == every;
  }
  static constexpr Fields scales = G::fields(F::scale.ints, 0, 4, -1);
  static constexpr bool fits = [] {
    if (!Isa::can_gather || F::block != kBlockK || (F::group != 16 && F::group != 32)) return false;
    if (!scales.fits || F::scale.ints.pieces(0) != 1 || F::scale.ints.bits() > 4 || pieces > 2) return false;
    if (F::offset.present) return false;
    if (F::scale.real != Real::f16 || F::scale.at + 8 > F::bytes) return false;
    for (int k = 0; k < pieces; ++k) {
      if (!G::fields(index, k, in_words || (T::can && width == 8) ? 2 : width).fits) return false;
    }
    if (has_signs) return G::fields(grid.signs, 0, 2).fits;
    return moves_points ? right_after(grid.index, width) : right_after(F::scale.ints, F::group);
  }();

  // What the bits of a scale stand for, for the codes and for the sum of activations.
  struct Levels {
    alignas(64) float codes[16], sums[16];
  };
  static constexpr Levels levels = [] {
    Levels out{};
    const int bits = F::scale.ints.bits();
    for (int i = 0; i < 16; ++i) {
      const int scale = F::scale.ints.times * (i & ((1 << bits) - 1)) - F::scale.ints.zero;
      const int sign = moves_points ? 0 : i >> bits & 1 ? -1 : 1;
      out.codes[i] = F::scale.unit * static_cast<float>(scale * times);
      out.sums[i] = F::scale.unit * static_cast<float>(scale * (sign - zero));
    }
    return out;
  }();
  struct Table {
    static constexpr int count = GridLevels<F>::count;
    alignas(64) static constexpr auto bytes_of = [] {
      std::array<uint8_t, static_cast<size_t>(count) * width * (1 + moves_points)> out{};
      for (int i = 0; i < static_cast<int>(out.size()); ++i) {
        const int v = F::points.values[i / width % count][i % width];
        const int moved = i / width < count ? 1 : -1;
        out[i] = static_cast<uint8_t>(moves_points ? 8 * v + moved + zero : has_signs ? v : v + 1);
      }
      return out;
    }();
    static_assert(*std::max_element(bytes_of.begin(), bytes_of.end()) <= 64);  // add_two
  };

  template <Ints what>
  static FEWBIT_INLINE auto small_words(const uint8_t* p) {  // 32 of them
    typename Isa::bytes v;
    if constexpr (G::in_bytes(what, 0))
      v = I::bytes_in_words(p + what.piece(0, 0).bit / 8);
    else
      v = I::template only_fields<G::fields(what, 0, 2), 2>(p);
    if constexpr (what.pieces(0) > 1) v = I::template with_fields<G::fields(what, 1, 2), 2>(v, p);
    return v;
  }
  // `words`: numbers of points, or the points.
  template <int c, class bytes>
  static FEWBIT_INLINE bytes codes(const uint8_t* p, const bytes* words) {
    if constexpr (T::can) {
      return T::template values<c>(words);
    } else if constexpr (in_words) {
      return I::template points_at<width>(I::template fourth<c>(words[0]), Table::bytes_of.data());
    } else {
      bytes v = I::template only_fields<G::fields(index, 0, width, c), width>(p);
      if constexpr (pieces > 1) v = I::template with_fields<G::fields(index, 1, width, c), width>(v, p);
      return I::template points_at<width>(v, Table::bytes_of.data());
    }
  }
  static FEWBIT_INLINE auto sign_words(const uint8_t* p) {
    if constexpr (G::even_signs)
      return I::with_even_bit(small_words<grid.signs>(p));
    else
      return small_words<grid.signs>(p);
  }
  template <int j, class bytes>
  static FEWBIT_INLINE bytes activations(const Activation& a, bytes signs) {
    const int8_t* x = a.grid + j * Isa::W;
    if constexpr (has_signs) return I::with_bits(x, I::template grid_bits<j>(signs));
    return I::load(reinterpret_cast<const uint8_t*>(x));
  }
  // Vectors j and j + 1 of codes times all columns.
  template <int j, int Cols, class bytes, class ints>
  static FEWBIT_INLINE void add_two(const uint8_t* p, const bytes* words, bytes signs, const Activation* const* a,
                                    ints (*sums)[2]) {
    const bytes q = codes<j>(p, words), r = codes<j + 1>(p, words);
    for (int c = 0; c < Cols; ++c) {
      ints& sum = sums[c][by_16 && j > 1];
      sum = I::add_two(sum, q, activations<j>(*a[c], signs), r, activations<j + 1>(*a[c], signs));
    }
  }
  static FEWBIT_INLINE auto half_at(const uint8_t* p) {
    if constexpr (F::scale.bits.used > 0)
      return Isa::splat(Isa::half_from(static_cast<uint16_t>(read_at<F::scale.bits, 0>(p))));
    else
      return I::half_of_8(p + F::scale.at);
  }
  template <int Cols, class f32>
  static FEWBIT_INLINE void k_block(const uint8_t* p, const Activation* const* a, f32 (*acc)[2]) {
    const f32 d = half_at(p), scale = I::template looked_up<scales>(p, levels.codes);
    typename Isa::bytes words[2] = {}, signs{};
    if constexpr (in_words || (T::can && width == 8)) words[0] = small_words<index>(p);
    if constexpr (T::can) T::points(p, words);
    if constexpr (has_signs) signs = sign_words(p);
    typename Isa::ints sums[Cols][2];
    for (auto& s : sums) s[0] = s[1] = Isa::no_ints();
    add_two<0, Cols>(p, words, signs, a, sums);
    add_two<2, Cols>(p, words, signs, a, sums);
    for (int c = 0; c < Cols; ++c) {
      const f32 scaled = Isa::mul(scale, Isa::loadf(a[c]->d16));
      f32 all = Isa::mul(Isa::to_floats(sums[c][0]), by_16 ? I::template twice_each<false>(scaled) : scaled);
      if constexpr (by_16) all = Isa::fma(Isa::to_floats(sums[c][1]), I::template twice_each<true>(scaled), all);
      if constexpr (!has_signs) {
        all = Isa::fma(I::template looked_up<scales>(p, levels.sums), Isa::loadf(a[c]->s16), all);
      }
      acc[c][0] = Isa::fma(all, d, acc[c][0]);
    }
  }
};

template <class F>
constexpr bool is_grid_k_block() {
  if constexpr (F::kind == Kind::grid && Isa::can_gather)
    return GridKBlock<F>::fits;
  else
    return false;
}
