// Scales and offsets of a k-block of as many rows as a vector has lanes, a lane for each row. `Source` finds the bytes:
// `dword<byte>()` is the vector of dwords that hold this byte of the k-block, `place<byte>()` where in them it is.

template <class F>
struct LaneFactors {
  using I = typename Own<F>::type;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr bool offset = F::offset.present;

  template <Piece p, bool is_signed, class Source>
  static FEWBIT_INLINE bytes field(const Source& from) {
    constexpr int byte = p.bit / 8, shift = 8 * Source::template place<byte>() + p.bit % 8;
    return I::template field<shift, p.bits, p.dst, is_signed>(from.template dword<byte>());
  }
  // The small integer of group g, in units.
  template <Ints what, int g, class Source>
  static FEWBIT_INLINE f32 small(const Source& from) {
    bytes sum = field<what.piece(0, g), what.is_signed>(from);
    if constexpr (what.pieces(g) > 1) sum = Isa::either(sum, field<what.piece(1, g), what.is_signed>(from));
    static_assert(what.pieces(g) <= 2);
    constexpr float unit = F::scale.unit;
    if constexpr (what.times == 1 && unit == 1) {
      return I::template less_to_floats<what.zero>(sum);
    } else {
      return Isa::fma(I::template less_to_floats<0>(sum), Isa::splat(what.times * unit), Isa::splat(-what.zero * unit));
    }
  }
  template <int byte, class Source>
  static FEWBIT_INLINE f32 half(const Source& from) {
    static_assert(Source::template place<byte>() % 2 == 0);
    return I::template halves_of<(Source::template place<byte>() != 0)>(from.template dword<byte>());
  }
};
