// Rows that lie abreast, 16 of them: of every span four bytes of each row, then the next four, and so on. A line of
// memory is then a vector with a lane for each row, as matrix tiles want their right side, and nothing has to be
// turned. What is left of a span, two bytes of each row, is half a line. Row placement: four bytes after four from the
// codes to the last scale.

template <class F>
struct Abreast {
  using I = typename Own<F>::type;
  using P = Span<F>;
  using S = Shape<F>;
  using Of = LaneFactors<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int sub = S::sub, groups = S::groups, lines = S::span_bytes() / 4,
                       panel_bytes = 16 * S::span_bytes();
  static constexpr int parts = 16 / Isa::L;  // of 16 rows
  static constexpr bool offset = F::offset.present;
  // What a whole span is multiplied by, after the small integers of its groups, or alone.
  static constexpr bool small = F::scale.ints.used > 0, alone = !S::row && F::group == kSpan, late = small || alone;

  static constexpr bool can() { return Isa::can_lie_abreast && can_lie_abreast<F>(); }

  // A span of 16 rows, or of a part of them.
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
    static constexpr int place() {
      return byte % 4;
    }
    template <int byte>
    FEWBIT_INLINE bytes dword() const {
      return line<byte / 4>();
    }
    template <int byte>
    FEWBIT_INLINE f32 half() const {
      if constexpr (byte == 4 * lines)
        return I::template reals_at<Real::f16>(p + 64 * lines + part * 2 * Isa::L);
      else
        return Of::template half<byte>(*this);
    }
    // Row placement: the scale or the offset of group g.
    template <int field>
    FEWBIT_INLINE const uint8_t* real_at(int g) const {
      const size_t value = first + static_cast<size_t>(g * sub), group = at->shift >= 0 ? value >> at->shift : 0;
      return set + 16 * at->field_at[field] + 64 * group + part * Isa::W;
    }
    // Brings parts `from` to `to` of `of` of what comes `far` bytes later to the second-level cache. Row placement: of
    // the next span, with scales and offsets of the next 16 rows.
    template <int from, int to, int of, size_t far>
    FEWBIT_INLINE void ask(size_t spans) const {
      size_t distance = far;
      if constexpr (S::row) {
        const size_t set_bytes = 16 * at->row_bytes, last = (spans - 1) * kSpan;
        distance = first < last ? panel_bytes : set_bytes - (spans - 1) * panel_bytes;
        for (int g = from * groups / of; g < to * groups / of; ++g) {
          __builtin_prefetch(real_at<0>(g) + set_bytes, 0, 2);
          if constexpr (offset) __builtin_prefetch(real_at<offset>(g) + set_bytes, 0, 2);
        }
      }
      for (int l = from * lines / of; l < to * lines / of; ++l) __builtin_prefetch(p + distance + 64 * l, 0, 2);
    }
  };

  template <int q, int k>
  static FEWBIT_INLINE bytes piece(const Panel& panel) {
    constexpr Piece p = S::piece(k, 4 * q);
    constexpr int byte = p.bit / 8, shift = p.bit % 8;
    if constexpr (TurnedShape<F>::in_bytes(k))
      return I::template take<shift, p.bits, p.dst>(panel.template from<byte>());
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
  // The same as `Span::code` says.
  template <int q>
  static FEWBIT_INLINE bytes code(const Panel& panel) {
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
  // The factor of a group; where they come late the small integer.
  template <int g, bool is_offset>
  static FEWBIT_INLINE f32 factor(const Panel& panel) {
    constexpr const Factor& f = is_offset ? F::offset : F::scale;
    if constexpr (S::row) {
      return Isa::loadu(reinterpret_cast<const float*>(panel.template real_at<is_offset>(g)));
    } else if constexpr (small) {
      return Of::template small<f.ints, g>(panel);
    } else {
      constexpr int value = g * sub;
      return real_at<f.real, value / F::block * F::bytes + f.at + value % F::block / F::group * real_bytes(f.real)>(
          panel);
    }
  }
  struct Late {
    f32 d, dmin;
  };
  static FEWBIT_INLINE Late late_factors(const Panel& panel) {
    Late out;
    if constexpr (late) {
      out.d = real_at<F::scale.real, F::scale.at>(panel);
      if constexpr (offset) out.dmin = real_at<F::offset.real, F::offset.at>(panel);
    }
    return out;
  }
  template <int g>
  static FEWBIT_INLINE f32 scale(const Panel& panel, const Late& by) {
    if constexpr (alone) return by.d;
    const f32 v = factor<g, false>(panel);
    return late ? Isa::mul(v, by.d) : v;
  }
  // With its sign.
  template <int g>
  static FEWBIT_INLINE f32 offset_of(const Panel& panel, const Late& by) {
    const f32 v = factor<g, offset>(panel), own = late ? Isa::mul(v, by.dmin) : v;
    return F::offset_sign > 0 ? own : Isa::mul(own, Isa::splat(-1));
  }
};

// Some columns of 8-bit activations, as in lanes.h. Panels that lie far apart are read in turns, group by group: the
// memory gives more to several readers than to one.
template <class F>
struct AbreastDot {
  using I = typename Own<F>::type;
  using K = Abreast<F>;
  using P = Span<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int sub = K::sub, quads = sub / 4, parts = K::parts;
  static constexpr int most = [] {  // the largest code
    if (F::codebook.used > 0) return F::codebook.high() + P::code.zero;
    return (1 << F::codes.bits()) - 1;
  }();
  template <int Cols>
  static constexpr size_t places = 4 / Cols;

  template <int Cols>
  struct Sums {  // of a span, before the late factors; else of the row
    f32 dots[Cols], offsets[Cols];
  };
  // What a group of a column brings to every row: its scale, its sum, and that times minus the zero point.
  template <int Cols>
  struct Inputs {
    f32 scale[Cols], sum[Cols], zero[Cols];
  };

  template <int g>
  static FEWBIT_INLINE void ask(const typename K::Panel& panel, size_t spans) {
    constexpr int near = kPrefetchNear / 2, far = std::max(kPrefetchFar / 4, K::panel_bytes);
    panel.template ask<g, g + 1, K::groups, far>(spans);
    for (int l = g * K::lines / K::groups; l < (g + 1) * K::lines / K::groups; ++l) {
      __builtin_prefetch(panel.p + near + 64 * l, 0, 3);
    }
  }
  template <int g, int Cols>
  static FEWBIT_INLINE void inputs(const Activation* const* a, Inputs<Cols>& out) {
    for (int c = 0; c < Cols; ++c) {
      out.scale[c] = Isa::splat(sub == 16 ? a[c]->d16[g] : a[c]->d32[g]);
      out.sum[c] = Isa::splat(sub == 16 ? a[c]->s16[g] : a[c]->s32[g]);
      out.zero[c] = Isa::mul(out.sum[c], Isa::splat(static_cast<float>(-P::code.zero)));
    }
  }
  template <int g, int Cols>
  static FEWBIT_INLINE void group(const typename K::Panel& panel, const Activation* const* a, const Inputs<Cols>& in,
                                  Sums<Cols>& to) {
    bytes q[quads];
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((q[i] = K::template code<g * quads + i>(panel)), ...);
    }(std::make_integer_sequence<int, quads>{});
    f32 scale, shift;
    if constexpr (!K::alone) scale = K::template factor<g, false>(panel);
    if constexpr (K::offset) shift = K::template factor<g, K::offset>(panel);
    for (int c = 0; c < Cols; ++c) {
      const f32 dots = Isa::to_floats(I::template lanes_dot<quads, most, P::code.is_signed>(q, a[c]->q + g * sub));
      const f32 times = P::code.times == 1 ? in.scale[c] : Isa::mul(in.scale[c], Isa::splat(P::code.times));
      if constexpr (K::alone) {
        to.dots[c] = Isa::fma(dots, times, to.dots[c]);
        if constexpr (P::code.zero != 0) to.dots[c] = Isa::add(to.dots[c], in.zero[c]);
      } else {
        const f32 own = P::code.zero != 0 ? Isa::fma(dots, times, in.zero[c]) : Isa::mul(dots, times);
        to.dots[c] = Isa::fma(own, scale, to.dots[c]);
      }
      if constexpr (K::offset) to.offsets[c] = Isa::fma(shift, in.sum[c], to.offsets[c]);
    }
  }
  template <int Cols>
  static FEWBIT_INLINE void clear(Sums<Cols>& s) {
    for (int c = 0; c < Cols; ++c) s.dots[c] = s.offsets[c] = Isa::zero();
  }
  template <int Cols>
  static FEWBIT_INLINE void add(const Sums<Cols>& s, const typename K::Late& by, f32* acc) {
    for (int c = 0; c < Cols; ++c) {
      acc[c] = K::late ? Isa::fma(s.dots[c], by.d, acc[c]) : Isa::add(s.dots[c], acc[c]);
      if constexpr (K::offset) {
        const f32 v = K::late ? Isa::mul(s.offsets[c], by.dmin) : s.offsets[c];
        acc[c] = F::offset_sign > 0 ? Isa::add(acc[c], v) : Isa::fma(v, Isa::splat(-1), acc[c]);
      }
    }
  }
  template <int Cols>
  struct Columns {
    const Activation* x;
    float* y;
    size_t stride;

    FEWBIT_INLINE void store(size_t row, const f32* acc) const {
      for (size_t c = 0; c < Cols; ++c) Isa::storef(y + c * stride + row, acc[c]);
    }
  };
  // Sets of 16 rows: one at each of `here` places, the first of them number `first`, the others `apart` further. Sums
  // of several places stay in memory: what is done for every group, written out for each of them, would be too long.
  template <int Cols>
  static FEWBIT_ONCE void sets(const uint8_t* w, size_t first, size_t apart, size_t here, size_t spans,
                               const Layout& at, const Columns<Cols>& columns) {
    constexpr size_t most = places<Cols>;
    f32 acc[most][parts][Cols];
    Sums<Cols> sums[most][parts];
    const auto each = [&](auto&& f) FEWBIT_LAMBDA_INLINE {
#pragma GCC unroll 1
      for (size_t r = 0; r < (most == 1 ? 1 : here); ++r) {
        for (int part = 0; part < parts; ++part) f(r, part);
      }
    };
    each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
      clear(sums[r][part]);
      for (int c = 0; c < Cols; ++c) acc[r][part][c] = Isa::zero();
    });
    for (size_t s = 0; s < spans; ++s) {
      const Activation* a[Cols];
      for (int c = 0; c < Cols; ++c) a[c] = columns.x + s + c * spans;
      const auto panel = [&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
        const uint8_t* set = w + (first + r * apart) * 16 * at.row_bytes;
        return typename K::Panel{set + s * K::panel_bytes, part, set, &at, s * kSpan};
      };
      [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
        (
            [&]() FEWBIT_LAMBDA_INLINE {
              Inputs<Cols> in;
              inputs<g>(a, in);
              each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
                if (part == 0) ask<g>(panel(r, 0), spans);
                group<g>(panel(r, part), a, in, sums[r][part]);
              });
            }(),
            ...);
      }(std::make_integer_sequence<int, K::groups>{});
      if constexpr (!K::late) continue;
      each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
        add(sums[r][part], K::late_factors(panel(r, part)), acc[r][part]);
        clear(sums[r][part]);
      });
    }
    each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
      if constexpr (!K::late) add(sums[r][part], typename K::Late{}, acc[r][part]);
      columns.store(16 * (first + r * apart) + static_cast<size_t>(part) * Isa::L, acc[r][part]);
    });
  }
  template <int Cols>
  static void some(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x, float* y,
                   size_t y_stride) {
    const size_t spans = k / kSpan, each = count / places<Cols>, whole = each * places<Cols>;
    const Columns<Cols> columns{x, y, y_stride};
    for (size_t i = 0; i < each; ++i) sets(w, i, each, places<Cols>, spans, at, columns);
    if (whole < count) sets(w, whole, 1, count - whole, spans, at, columns);
  }
};

// `rows` is a multiple of 16, k of 256.
template <class F>
void abreast_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                  float* y, size_t y_stride) {
  using K = AbreastDot<F>;
  const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
    K::template some<Cols>(w, rows / 16, k, at, x + c * (k / kSpan), y + c * y_stride, y_stride);
  };
  for (size_t c = 0; c < columns; c += 4) {
    switch (columns - c) {
      case 1: some(std::integral_constant<int, 1>{}, c); break;
      case 2: some(std::integral_constant<int, 2>{}, c); break;
      case 3: some(std::integral_constant<int, 3>{}, c); break;
      default: some(std::integral_constant<int, 4>{}, c);
    }
  }
}

// `bytes` bytes of each of 16 rows: from where they lie abreast to rows that are `stride` bytes apart, and back. Four
// of each row for every line, then what is left.
template <class I = Isa>
void from_abreast(const uint8_t* panel, size_t bytes, uint8_t* rows, size_t stride) {
  const size_t lines = bytes / 4, fours = I::can_turn ? lines / 4 * 4 : 0, left = bytes % 4;
  if constexpr (I::can_turn) {
    for (size_t l = 0; l < fours; l += 4) I::lines_to_rows(panel + 64 * l, rows + 4 * l, stride);
  }
  for (size_t i = 16 * fours; i < 16 * lines; ++i) std::memcpy(rows + i % 16 * stride + i / 16 * 4, panel + 4 * i, 4);
  for (size_t r = 0; r < 16 && left; ++r)
    std::memcpy(rows + r * stride + 4 * lines, panel + 64 * lines + r * left, left);
}
template <class I = Isa>
void to_abreast(const uint8_t* rows, size_t stride, size_t bytes, uint8_t* panel) {
  const size_t lines = bytes / 4, fours = I::can_turn ? lines / 4 * 4 : 0, left = bytes % 4;
  if constexpr (I::can_turn) {
    for (size_t l = 0; l < fours; l += 4) I::rows_to_lines(rows + 4 * l, stride, panel + 64 * l);
  }
  for (size_t i = 16 * fours; i < 16 * lines; ++i) std::memcpy(panel + 4 * i, rows + i % 16 * stride + i / 16 * 4, 4);
  for (size_t r = 0; r < 16 && left; ++r)
    std::memcpy(panel + 64 * lines + r * left, rows + r * stride + 4 * lines, left);
}
constexpr AbreastMoves abreast_moves = {from_abreast<>, to_abreast<>};
