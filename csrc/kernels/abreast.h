// Rows that lie abreast, 16 of them: of every span four bytes of each row, then the next four, and so on. A line of
// memory is then a vector with a lane for each row, as matrix tiles want their right side, and nothing has to be
// turned.

template <class F>
struct Abreast {
  using I = typename Own<F>::type;
  using P = Span<F>;
  using S = Shape<F>;
  using Of = LaneFactors<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int sub = S::sub, groups = S::groups, lines = S::span_bytes() / 4, panel_bytes = 64 * lines;
  static constexpr bool offset = F::offset.present;

  static constexpr bool can() { return Isa::can_turn && can_lie_abreast<F>(); }

  // A span of 16 rows.
  struct Panel {
    const uint8_t* p;

    template <int i>
    FEWBIT_INLINE bytes line() const {  // four bytes of every row
      static_assert(i < lines);
      return Isa::load(p + 64 * i);
    }
    template <int byte>  // from any byte on
    FEWBIT_INLINE bytes from() const {
      if constexpr (byte % 4 == 0)
        return line<byte / 4>();
      else
        return I::template joined<byte % 4 * 8>(line<byte / 4>(), line<byte / 4 + 1>());
    }
    template <int byte>
    static constexpr int place() {
      return byte % 4;
    }
    template <int byte>
    FEWBIT_INLINE bytes dword() const {
      return line<byte / 4>();
    }
  };

  template <int q, int k>
  static FEWBIT_INLINE bytes piece(Panel panel) {
    constexpr Piece p = S::piece(k, 4 * q);
    constexpr int byte = p.bit / 8, shift = p.bit % 8;
    if constexpr (TurnedShape<F>::in_bytes(k))
      return I::template take<shift, p.bits, p.dst>(panel.template from<byte>());
    else
      return I::template take_bits<byte % 4, shift, p.dst>(panel.template dword<byte>());
  }
  // Codes 4 q to 4 q + 3 of every row, as stored.
  template <int q>
  static FEWBIT_INLINE bytes stored(Panel panel) {
    bytes v = piece<q, 0>(panel);
    if constexpr (F::codes.pieces(0) > 1) v = Isa::either(v, piece<q, 1>(panel));
    if constexpr (F::codes.pieces(0) > 2) v = Isa::either(v, piece<q, 2>(panel));
    return v;
  }
  // The same as `Span::code` says, never below 0.
  template <int q>
  static FEWBIT_INLINE bytes code(Panel panel) {
    static_assert(!P::code.is_signed);
    bytes v = stored<q>(panel);
    if constexpr (F::codebook.used > 0) v = Isa::template lookup<F::codebook, P::code.zero>(v);
    if constexpr (P::code.flip) v = Isa::flip(v);
    return v;
  }

  struct Halves {  // of a block that fills a span
    f32 d, dmin;
  };
  static FEWBIT_INLINE Halves halves(Panel panel) {
    Halves out;
    if constexpr (F::block == kSpan && F::scale.ints.used > 0) {
      out.d = Of::template half<F::scale.at>(panel);
      out.dmin = offset ? Of::template half<offset ? F::offset.at : F::scale.at>(panel) : out.d;
    }
    return out;
  }
  template <int g, bool is_offset>
  static FEWBIT_INLINE f32 factor(Panel panel, Halves by) {
    constexpr const Factor& f = is_offset ? F::offset : F::scale;
    if constexpr (f.ints.used > 0) {
      return Isa::mul(Of::template small<f.ints, g>(panel), is_offset ? by.dmin : by.d);
    } else {
      constexpr int byte = g * sub / F::block * F::bytes + f.at;
      if constexpr (f.real == Real::f16)
        return Of::template half<byte>(panel);
      else if constexpr (f.real == Real::e8m0)
        return I::e8m0(I::template field<byte % 4 * 8, 8, 0, false>(panel.template dword<byte>()));
      else
        return I::as_floats(panel.template from<byte>());
    }
  }
  template <int g>
  static FEWBIT_INLINE f32 scale(Panel panel, Halves by) {
    return factor<g, false>(panel, by);
  }
  // With its sign.
  template <int g>
  static FEWBIT_INLINE f32 offset_of(Panel panel, Halves by) {
    const f32 v = factor<g, offset>(panel, by);
    return F::offset_sign > 0 ? v : Isa::mul(v, Isa::splat(-1));
  }
};

// Some columns of 8-bit activations, as in lanes.h. Panels that lie far apart are read in turns, group by group: the
// memory gives more to several readers than to one.
template <class F>
struct AbreastDot {
  using K = Abreast<F>;
  using P = Span<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int sub = K::sub, quads = sub / 4;
  static constexpr bool shifts = P::code.zero != 0 || K::offset;
  template <int Cols>
  static constexpr int places = Cols == 1   ? 4
                                : Cols == 2 ? 2
                                            : 1;

  template <int g, int Places>
  static FEWBIT_INLINE void ask(const uint8_t* p) {
    constexpr int far = kPrefetchFar / Places, near = kPrefetchNear / (Places > 1 ? 2 : 1);
    for (int l = g * K::lines / K::groups; l < (g + 1) * K::lines / K::groups; ++l) {
      __builtin_prefetch(p + far + 64 * l, 0, 2);
      __builtin_prefetch(p + near + 64 * l, 0, 3);
    }
  }
  template <int g, int Cols>
  static FEWBIT_INLINE void group(typename K::Panel panel, typename K::Halves by, const Activation* const* a,
                                  f32* acc) {
    bytes q[quads];
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((q[i] = K::template code<g * quads + i>(panel)), ...);
    }(std::make_integer_sequence<int, quads>{});
    f32 scale = K::template scale<g>(panel, by), shift;
    if constexpr (K::offset) shift = K::template offset_of<g>(panel, by);
    if constexpr (P::code.zero != 0) {
      const f32 zero = Isa::splat(static_cast<float>(-P::code.zero));
      shift = K::offset ? Isa::fma(scale, zero, shift) : Isa::mul(scale, zero);
    }
    if constexpr (P::code.times != 1) scale = Isa::mul(scale, Isa::splat(static_cast<float>(P::code.times)));
    for (int c = 0; c < Cols; ++c) {
      auto dots = Isa::no_ints();
      for (int i = 0; i < quads; ++i) {
        dots = Isa::template lane_dot<false>(dots, q[i], a[c]->q + g * sub + 4 * i);
      }
      const f32 both = Isa::mul(scale, Isa::splat(a[c]->d32[g]));
      acc[c] = Isa::fma(Isa::to_floats(dots), both, acc[c]);
      if constexpr (shifts) acc[c] = Isa::fma(shift, Isa::splat(a[c]->s32[g]), acc[c]);
    }
  }
  // A set of 16 rows at each of some places that are `apart` bytes apart.
  template <int Cols, int Places>
  static FEWBIT_INLINE void sets(const uint8_t* w, size_t apart, size_t spans, const Activation* x, f32 (*acc)[Cols]) {
    for (int r = 0; r < Places; ++r) {
      for (int c = 0; c < Cols; ++c) acc[r][c] = Isa::zero();
    }
    for (size_t s = 0; s < spans; ++s, w += K::panel_bytes) {
      const Activation* a[Cols];
      for (int c = 0; c < Cols; ++c) a[c] = x + s + c * spans;
      typename K::Halves by[Places];
      for (int r = 0; r < Places; ++r) by[r] = K::halves({w + r * apart});
      [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
        (
            [&]() FEWBIT_LAMBDA_INLINE {
              for (int r = 0; r < Places; ++r) {
                ask<g, Places>(w + r * apart);
                group<g, Cols>({w + r * apart}, by[r], a, acc[r]);
              }
            }(),
            ...);
      }(std::make_integer_sequence<int, K::groups>{});
    }
  }
  template <int Cols, int Places>
  static void some(const uint8_t* w, size_t count, size_t k, const Activation* x, float* y, size_t y_stride) {
    const size_t spans = k / kSpan, set_bytes = spans * K::panel_bytes, each = count / Places;
    for (size_t i = 0; i < each; ++i) {
      f32 acc[Places][Cols];
      sets<Cols, Places>(w + i * set_bytes, each * set_bytes, spans, x, acc);
      for (int r = 0; r < Places; ++r) {
        for (int c = 0; c < Cols; ++c) Isa::storef(y + c * y_stride + 16 * (r * each + i), acc[r][c]);
      }
    }
    const size_t done = each * Places;
    if constexpr (Places > 1) some<Cols, 1>(w + done * set_bytes, count - done, k, x, y + 16 * done, y_stride);
  }
};

// `rows` is a multiple of 16, k of 256.
template <class F>
void abreast_rows(const uint8_t* w, size_t rows, size_t k, const Activation* x, size_t columns, float* y,
                  size_t y_stride) {
  using K = AbreastDot<F>;
  const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
    K::template some<Cols, K::template places<Cols>>(w, rows / 16, k, x + c * (k / kSpan), y + c * y_stride, y_stride);
  };
  size_t c = 0;
  for (; c + 8 <= columns; c += 8) some(std::integral_constant<int, 8>{}, c);
  for (; c + 4 <= columns; c += 4) some(std::integral_constant<int, 4>{}, c);
  switch (columns - c) {
    case 3: return some(std::integral_constant<int, 3>{}, c);
    case 2: return some(std::integral_constant<int, 2>{}, c);
    case 1: return some(std::integral_constant<int, 1>{}, c);
  }
}

// 16 rows that lie abreast, to rows that are `stride` bytes apart, and back: 4 bytes of each for every line.
template <class I = Isa>
void from_abreast(const uint8_t* panel, size_t lines, uint8_t* rows, size_t stride) {
  const size_t fours = I::can_turn ? lines / 4 * 4 : 0;
  if constexpr (I::can_turn) {
    for (size_t l = 0; l < fours; l += 4) I::lines_to_rows(panel + 64 * l, rows + 4 * l, stride);
  }
  for (size_t i = 16 * fours; i < 16 * lines; ++i) std::memcpy(rows + i % 16 * stride + i / 16 * 4, panel + 4 * i, 4);
}
template <class I = Isa>
void to_abreast(const uint8_t* rows, size_t stride, size_t lines, uint8_t* panel) {
  const size_t fours = I::can_turn ? lines / 4 * 4 : 0;
  if constexpr (I::can_turn) {
    for (size_t l = 0; l < fours; l += 4) I::rows_to_lines(rows + 4 * l, stride, panel + 64 * l);
  }
  for (size_t i = 16 * fours; i < 16 * lines; ++i) std::memcpy(panel + 4 * i, rows + i % 16 * stride + i / 16 * 4, 4);
}
constexpr AbreastMoves abreast_moves = {from_abreast<>, to_abreast<>};
