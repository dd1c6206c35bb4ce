// Codes and factors of interleaved rows as kernels/by_lane.h wants them: four codes of each row in a vector, which
// may stand in another order than in the file. Activations are packed in the same order.

// f(0) to f(count - 1), as constants.
template <int count, class Fn>
FEWBIT_INLINE void times(Fn&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>)
      FEWBIT_LAMBDA_INLINE { (f(std::integral_constant<int, i>{}), ...); }(std::make_integer_sequence<int, count>{});
}

template <class F>
struct LaneCodes {
  using K = Interleaved<F>;
  using I = typename Own<F>::type;
  using P = KBlock<F>;
  using S = Shape<F>;
  using Panel = typename K::Panel;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int group_size = K::group_size, quads = group_size / 4, groups = K::groups;
  static constexpr int pieces = F::codes.pieces(0);
  static_assert(P::code.times == 1);

  // Codes of a group that lie in neighbouring bytes, shifted alike.
  static constexpr int run(int g) {
    int n = 1;
    while (n < group_size && S::piece(0, g * group_size + n).bit == S::piece(0, g * group_size).bit + 8 * n) ++n;
    return n;
  }
  // By how many bytes the runs of group g are rotated, so that each begins where a dword does: the first bytes hold
  // the last codes. Only one line in a run must then be put together from two.
  static constexpr int rotated(int g) {
    const int n = run(g), by = S::piece(0, g * group_size).bit / 8 % 4;
    for (int e = 0; e < group_size; e += n) {
      if (n % 4 != 0 || S::piece(0, g * group_size + e).bit / 8 % 4 != by) return 0;
    }
    if (pieces > 2 || (pieces == 2 && PanelCodes<F>::in_bytes(1))) return 0;
    for (int e = 0; e < group_size && pieces == 2; ++e) {
      if (S::piece(1, g * group_size + e).bit / 32 != S::piece(1, g * group_size + e / n * n).bit / 32) return 0;
    }
    return by;
  }
  // The code of group g that stands at a position.
  static constexpr int code_at(int g, int place) {
    const int n = run(g);
    return place / n * n + (place + n - rotated(g)) % n;
  }
  // By how many bits codes are left unshifted: a shift less. Scales are divided by as much.
  static constexpr int unshifted_by(int g) {
    const int by = S::piece(0, g * group_size).bit % 8;
    if (F::codebook.used > 0 || P::code.is_signed || P::most << by > Isa::max_unsigned) return 0;
    if (pieces > 1 && (S::piece(1, 0).bits > 1 || !PanelCodes<F>::in_bytes(1))) return 0;
    for (int e = 0; e < group_size; ++e) {
      if (S::piece(0, g * group_size + e).bit % 8 != by) return 0;
    }
    return by;
  }

  // The bytes that hold the first piece of codes at positions 4 i to 4 i + 3.
  template <int g, int i>
  static FEWBIT_INLINE bytes line(const Panel& panel) {
    constexpr int n = run(g), by = rotated(g), first = 4 * i / n * n;
    constexpr int byte = S::piece(0, g * group_size + first).bit / 8 - by + 4 * i - first;
    if constexpr (by > 0 && 4 * i == first)
      return I::template rotated_ends<by>(panel.template from<byte>(), panel.template from<byte + n>());
    else if constexpr (by > 0)
      return panel.template from<byte>();
    else
      return panel.template from<S::piece(0, g * group_size + 4 * i).bit / 8>();
  }
  template <int g, int i>
  static FEWBIT_INLINE bytes stored(const Panel& panel) {
    constexpr int here = g * group_size + 4 * i,
                  first = rotated(g) > 0 ? g * group_size + 4 * i / run(g) * run(g) : here;
    constexpr Piece p = S::piece(0, first);
    constexpr int shift = p.bit % 8, up = unshifted_by(g);
    const bytes v = line<g, i>(panel);
    if constexpr (pieces == 1) {
      return I::template take<shift, p.bits, up>(v);
    } else {
      static_assert(pieces == 2 && p.dst == 0);
      constexpr Piece more = S::piece(1, here);
      if constexpr (!PanelCodes<F>::in_bytes(1)) {
        constexpr std::array<int, 4> at = bits_of(g, i);
        return I::template with_bits<at, more.dst>(I::template take<shift, p.bits, 0>(v),
                                                   panel.template dword<S::piece(1, first).bit / 8>());
      } else if constexpr (more.bits == 1) {
        return I::template with_bit<more.bit % 8, more.dst + up>(I::template take<shift, p.bits, up>(v),
                                                                 panel.template from<more.bit / 8>());
      } else {
        return I::template with_upper<shift, p.bits, more.bit % 8, more.bits>(v, panel.template from<more.bit / 8>());
      }
    }
  }
  static constexpr std::array<int, 4> bits_of(int g, int i) {
    std::array<int, 4> out{};
    for (int b = 0; b < 4; ++b) out[b] = S::piece(1, g * group_size + code_at(g, 4 * i + b)).bit % 32;
    return out;
  }
  // Four codes of each row, at positions 4 i to 4 i + 3 of group g.
  template <int g, int i>
  static FEWBIT_INLINE bytes code(const Panel& panel) {
    bytes v = stored<g, i>(panel);
    if constexpr (F::codebook.used > 0) v = Isa::template lookup<F::codebook, P::code.is_signed ? 0 : P::code.zero>(v);
    if constexpr (P::code.flip) v = Isa::flip(v);
    return v;
  }
  template <int g>
  static FEWBIT_INLINE void codes(const Panel& panel, bytes* out) {
    times<quads>([&](auto i) FEWBIT_LAMBDA_INLINE { out[i] = code<g, i>(panel); });
  }

  // Small integers of four groups at once, as bytes: less their zero point they are signed. They lie in the bytes of a
  // dword, or their pieces anywhere in one.
  static constexpr bool in_bytes(const Ints& what) { return K::in_fours(what) && what.high() + what.zero < 128; }
  static constexpr bool in_dwords(const Ints& what) {
    if (what.used == 0 || what.is_signed || what.times != 1 || F::scale.unit != 1 || what.bits() > 7) return false;
    for (int g = 0; g < groups; ++g) {
      for (int k = 0; k < what.pieces(g); ++k) {
        const Piece p = what.piece(k, g);
        if (p.bit / 32 != what.piece(k, g / 4 * 4).bit / 32 || p.bit % 8 + p.bits > 8) return false;
      }
      if (what.pieces(g) > 2) return false;
    }
    return groups % 4 == 0;
  }
  static constexpr bool in_fours(const Ints& what) { return in_bytes(what) || in_dwords(what); }
  static constexpr std::array<int, 4> bits_of_four(const Ints& what, int k, int j) {
    std::array<int, 4> out{};
    for (int i = 0; i < 4; ++i) out[i] = what.piece(k, 4 * j + i).bit % 32;
    return out;
  }
  template <Ints what, int j, int k>
  static FEWBIT_INLINE bytes gathered(const Panel& panel) {
    constexpr Piece p = what.piece(k, 4 * j);
    return I::template gathered<bits_of_four(what, k, j), p.bits, p.dst>(panel.template line<p.bit / 32>());
  }
  template <Ints what, int j>
  static FEWBIT_INLINE bytes four(const Panel& panel) {
    constexpr Piece p = what.piece(0, 4 * j), more = what.piece(1, 4 * j);
    constexpr bool two = what.pieces(4 * j) > 1;
    if constexpr (!in_bytes(what) && two)
      return Isa::either(gathered<what, j, 0>(panel), gathered<what, j, 1>(panel));
    else if constexpr (!in_bytes(what))
      return gathered<what, j, 0>(panel);
    else if constexpr (two)
      return I::template with_upper<p.bit % 8, p.bits, more.bit % 8, more.bits>(panel.template line<p.bit / 32>(),
                                                                                panel.template line<more.bit / 32>());
    else
      return I::template take<p.bit % 8, p.bits, 0>(panel.template line<p.bit / 32>());
  }
  // Scales of one byte, those of four groups in a dword.
  static constexpr bool byte_reals = Slots<F, 16>::is_quads() && F::scale.at % 4 == 0 && F::bytes % 4 == 0;

  struct Fours {
    bytes scales, offsets;
    f32 reals[4];
  };
  // To be called for all groups in order.
  template <int g>
  static FEWBIT_INLINE void next(const Panel& panel, Fours& fours) {
    if constexpr (g % 4 == 0) {
      if constexpr (in_fours(F::scale.ints)) fours.scales = four<F::scale.ints, g / 4>(panel);
      if constexpr (in_fours(F::offset.ints)) fours.offsets = four<F::offset.ints, g / 4>(panel);
      if constexpr (byte_reals)
        I::template four_reals<F::scale.real>(panel.template line<(g / 4 * F::bytes + F::scale.at) / 4>(), fours.reals);
    }
  }
  template <int g, bool is_offset>
  static FEWBIT_INLINE f32 factor(const Panel& panel, const Fours& fours) {
    constexpr Ints what = is_offset ? F::offset.ints : F::scale.ints;
    if constexpr (in_fours(what))
      return I::template byte_float<g % 4, what.zero>(is_offset ? fours.offsets : fours.scales);
    else if constexpr (byte_reals)
      return fours.reals[g % 4];
    else
      return K::template factor<g, is_offset>(panel);
  }
};
