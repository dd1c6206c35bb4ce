// Interleaved rows, 16 of them: of every k-block four bytes of each row, then the next four, and so on. A line of
// memory is then a vector with a lane for each row, as matrix tiles want their right side, and nothing has to be
// transposed. What is left of a k-block, two bytes of each row, is half a line. Row placement: four bytes after four
// from the codes to the last scale.

template <class F>
struct Interleaved {
  using I = typename Own<F>::type;
  using P = KBlock<F>;
  using S = Shape<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int group_size = S::group_size, groups = S::groups, lines = S::k_block_bytes() / 4,
                       panel_bytes = 16 * S::k_block_bytes();
  static constexpr int parts = 16 / Isa::L;  // of 16 rows
  static constexpr bool offset = F::offset.present;
  // What a whole k-block is multiplied by, after the small integers of its groups, or alone.
  static constexpr bool small = F::scale.ints.used > 0, alone = !S::row && F::group == kBlockK,
                        has_super_scale = small || alone;

  // Groups that are written out, and the bytes of a row that hold them: the rest is a loop.
  static constexpr int period = Repeats<F>::period(), repeats = groups / period, step = S::k_block_bytes() / repeats;
  static FEWBIT_INLINE size_t repeats_in(size_t values) {  // of a k-block of a row that has so many values left
    return std::min<size_t>(repeats, values / (period * group_size));
  }

  static constexpr bool can() { return Isa::can_interleave && can_interleave<F>(); }

  // A k-block of 16 rows, or of a part of them.
  struct Panel {
    const uint8_t* p;
    int part = 0;
    const uint8_t* set = nullptr;  // row placement: where the rows begin
    const Layout* at = nullptr;
    size_t first = 0;  // and the number of the first value

    template <int i>
    FEWBIT_INLINE bytes line() const {  // four bytes of every row
      static_assert(i < lines);
      return Isa::load(p + 64 * i + part * Isa::W);
    }
    template <int byte>  // from any byte on
    FEWBIT_INLINE bytes from() const {
      if constexpr (byte % 4 == 0)
        return line<byte / 4>();
      else
        return I::template joined<byte % 4 * 8>(line<byte / 4>(), line<byte / 4 + 1>());
    }
    template <int byte>
    FEWBIT_INLINE bytes dword() const {
      return line<byte / 4>();
    }
    template <int byte>
    FEWBIT_INLINE f32 half() const {
      static_assert(byte % 2 == 0);
      if constexpr (byte == 4 * lines)
        return I::template reals_at<Real::f16>(p + 64 * lines + part * 2 * Isa::L);
      else
        return I::template halves_of<(byte % 4 != 0)>(dword<byte>());
    }
    // Row placement: the scale or the offset of group g.
    template <int field>
    FEWBIT_INLINE const uint8_t* real_at(int g) const {
      const size_t value = first + static_cast<size_t>(g * group_size), group = at->shift >= 0 ? value >> at->shift : 0;
      return set + 16 * at->field_at[field] + 64 * group + part * Isa::W;
    }
    // The same after `count` periods.
    FEWBIT_INLINE Panel after(size_t count) const {
      return {p + count * 16 * step, part, set, at, first + count * period * group_size};
    }
    // Prefetches parts `from` to `to` of `of` of what comes `far` bytes after the first `some` groups to the
    // second-level cache. Row placement: of the next k-block, with scales and offsets of the next 16 rows.
    template <int from, int to, int of, size_t far, int some = groups>
    FEWBIT_INLINE void prefetch(size_t k_blocks) const {
      constexpr int count = lines * some / groups;
      size_t distance = far;
      if constexpr (S::row) {
        const size_t set_bytes = 16 * at->row_bytes, last = (k_blocks - 1) * kBlockK;
        distance = first < last ? panel_bytes : set_bytes - (k_blocks - 1) * panel_bytes;
        for (int g = from * some / of; g < to * some / of; ++g) {
          __builtin_prefetch(real_at<0>(g) + set_bytes, 0, 2);
          if constexpr (offset) __builtin_prefetch(real_at<offset>(g) + set_bytes, 0, 2);
        }
      }
#pragma GCC unroll 64
      for (int l = from * count / of; l < to * count / of; ++l) __builtin_prefetch(p + distance + 64 * l, 0, 2);
    }
  };

  template <int q, int k, int unshifted_by = 0>
  static FEWBIT_INLINE bytes piece(const Panel& panel) {
    constexpr Piece p = S::piece(k, 4 * q);
    constexpr int byte = p.bit / 8, shift = p.bit % 8;
    if constexpr (PanelCodes<F>::in_bytes(k))
      return I::template take<shift, p.bits, p.dst + unshifted_by>(panel.template from<byte>());
    else
      return I::template take_bits<byte % 4, shift, p.dst>(panel.template dword<byte>());
  }
  // Codes 4 q to 4 q + 3 of every row, as stored.
  template <int q>
  static FEWBIT_INLINE bytes stored(const Panel& panel) {
    bytes v = piece<q, 0>(panel);
    if constexpr (F::codes.pieces(0) > 1) v = Isa::either(v, piece<q, 1>(panel));
    if constexpr (F::codes.pieces(0) > 2) v = Isa::either(v, piece<q, 2>(panel));
    return v;
  }
  // By how many bits the codes of group g are shifted up where they lie: 0 if that is no use.
  static constexpr int shifted(int g) {
    if (F::codes.pieces(0) > 1 || F::codebook.used > 0 || P::code.flip || P::code.is_signed) return 0;
    const int by = S::piece(0, g * group_size).bit % 8;
    for (int e = 0; e < group_size; ++e) {
      if (S::piece(0, g * group_size + e).bit % 8 != by) return 0;
    }
    return by;
  }
  // The same as `KBlock::code` says; `unshifted_by`: times a power of two.
  template <int q, int unshifted_by = 0>
  static FEWBIT_INLINE bytes code(const Panel& panel) {
    if constexpr (unshifted_by > 0) return piece<q, 0, unshifted_by>(panel);
    bytes v = stored<q>(panel);
    if constexpr (F::codebook.used > 0) v = Isa::template lookup<F::codebook, P::code.is_signed ? 0 : P::code.zero>(v);
    if constexpr (P::code.flip) v = Isa::flip(v);
    return v;
  }

  template <Real real, int byte>
  static FEWBIT_INLINE f32 real_at(const Panel& panel) {
    if constexpr (real == Real::f16)
      return panel.template half<byte>();
    else if constexpr (real == Real::f32)
      return I::as_floats(panel.template from<byte>());
    else
      return I::template byte_real<real>(I::template field<byte % 4 * 8, 8, 0, false>(panel.template dword<byte>()));
  }
  template <Piece p, bool is_signed>
  static FEWBIT_INLINE bytes field(const Panel& panel) {
    return I::template field<p.bit % 32, p.bits, p.dst, is_signed>(panel.template dword<p.bit / 8>());
  }
  // The small integer of group g, in units.
  template <Ints what, int g>
  static FEWBIT_INLINE f32 small_factor(const Panel& panel) {
    static_assert(what.pieces(g) <= 2);
    bytes sum = field<what.piece(0, g), what.is_signed>(panel);
    if constexpr (what.pieces(g) > 1) sum = Isa::either(sum, field<what.piece(1, g), what.is_signed>(panel));
    constexpr float unit = F::scale.unit;
    if constexpr (what.times == 1 && unit == 1)
      return I::template less_to_floats<what.zero>(sum);
    else
      return Isa::fma(I::template less_to_floats<0>(sum), Isa::splat(what.times * unit), Isa::splat(-what.zero * unit));
  }
  // The factor of a group; where a super-block scale comes after, the small integer.
  template <int g, bool is_offset>
  static FEWBIT_INLINE f32 factor(const Panel& panel) {
    constexpr const Factor& f = is_offset ? F::offset : F::scale;
    if constexpr (S::row) {
      return Isa::loadu(reinterpret_cast<const float*>(panel.template real_at<is_offset>(g)));
    } else if constexpr (small) {
      return small_factor<f.ints, g>(panel);
    } else {
      return real_at<f.real, Repeats<F>::factor_at(f, g)>(panel);
    }
  }
  // Whether the small integers of four successive groups lie in the four bytes of a dword.
  static constexpr bool in_fours(const Ints& what) {
    if (what.used == 0 || what.times != 1 || F::scale.unit != 1 || (what.is_signed && what.bits() != 8)) return false;
    for (int g = 0; g < groups; ++g) {
      for (int k = 0; k < what.pieces(g); ++k) {
        const Piece p = what.piece(k, g), first = what.piece(k, g / 4 * 4);
        if (p.bit != first.bit + g % 4 * 8 || p.dst != first.dst || first.bit % 32 + p.bits > 8) return false;
      }
      if (what.pieces(g) > 2) return false;
    }
    return groups % 4 == 0;
  }
  template <Ints what, int j, int k>
  static FEWBIT_INLINE bytes four_pieces(const Panel& panel) {
    constexpr Piece p = what.piece(k, 4 * j);
    return I::template take<p.bit % 8, p.bits, p.dst>(panel.template line<p.bit / 32>());
  }
  template <Ints what, int j>
  static FEWBIT_INLINE bytes four(const Panel& panel) {  // those of groups 4 j to 4 j + 3
    bytes v = four_pieces<what, j, 0>(panel);
    if constexpr (what.pieces(4 * j) > 1) v = Isa::either(v, four_pieces<what, j, 1>(panel));
    return I::template less<what.zero>(v);
  }
  struct SuperScales {
    f32 d, dmin;
  };
  static FEWBIT_INLINE SuperScales super_scales(const Panel& panel) {
    SuperScales out;
    if constexpr (has_super_scale) {
      out.d = real_at<F::scale.real, F::scale.at>(panel);
      if constexpr (offset) out.dmin = real_at<F::offset.real, F::offset.at>(panel);
    }
    return out;
  }
  template <int g>
  static FEWBIT_INLINE f32 scale(const Panel& panel, const SuperScales& by) {
    if constexpr (alone) return by.d;
    const f32 v = factor<g, false>(panel);
    return has_super_scale ? Isa::mul(v, by.d) : v;
  }
  // With its sign.
  template <int g>
  static FEWBIT_INLINE f32 offset_of(const Panel& panel, const SuperScales& by) {
    const f32 v = factor<g, offset>(panel), own = has_super_scale ? Isa::mul(v, by.dmin) : v;
    return F::offset_sign > 0 ? own : Isa::mul(own, Isa::splat(-1));
  }
};

// `bytes` bytes of each of 16 rows: from interleaved ones to rows that are `stride` bytes apart, and back. Four
// of each row for every line, then what is left.
template <class I = Isa>
void from_interleaved(const uint8_t* panel, size_t bytes, uint8_t* rows, size_t stride) {
  constexpr size_t at_once = I::can_transpose ? 4 : I::L;
  const size_t lines = bytes / 4, whole = lines / at_once * at_once, left = bytes % 4;
  for (size_t l = 0; l < whole; l += at_once) {
    if constexpr (I::can_transpose)
      I::lines_to_rows(panel + 64 * l, rows + 4 * l, stride);
    else
      for (size_t r = 0; r < 16; r += I::L) I::transpose(panel + 64 * l + 4 * r, 64, rows + r * stride + 4 * l, stride);
  }
  for (size_t i = 16 * whole; i < 16 * lines; ++i) std::memcpy(rows + i % 16 * stride + i / 16 * 4, panel + 4 * i, 4);
  for (size_t r = 0; r < 16 && left; ++r)
    std::memcpy(rows + r * stride + 4 * lines, panel + 64 * lines + r * left, left);
}
template <class I = Isa>
void to_interleaved(const uint8_t* rows, size_t stride, size_t bytes, uint8_t* panel) {
  constexpr size_t at_once = I::can_transpose ? 4 : I::L;
  const size_t lines = bytes / 4, whole = lines / at_once * at_once, left = bytes % 4;
  for (size_t l = 0; l < whole; l += at_once) {
    if constexpr (I::can_transpose)
      I::rows_to_lines(rows + 4 * l, stride, panel + 64 * l);
    else
      for (size_t r = 0; r < 16; r += I::L) I::transpose(rows + r * stride + 4 * l, stride, panel + 64 * l + 4 * r, 64);
  }
  for (size_t i = 16 * whole; i < 16 * lines; ++i) std::memcpy(panel + 4 * i, rows + i % 16 * stride + i / 16 * 4, 4);
  for (size_t r = 0; r < 16 && left; ++r)
    std::memcpy(panel + 64 * lines + r * left, rows + r * stride + 4 * lines, left);
}
constexpr InterleaveMoves interleave_moves = {from_interleaved<>, to_interleaved<>};
