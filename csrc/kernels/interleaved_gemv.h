// Some columns of 8-bit activations, as in micro_kernel.h. Panels that lie far apart are read alternately, group by
// group: the memory gives more to several readers than to one.
template <class F>
struct InterleavedGemv {
  using I = typename Own<F>::type;
  using K = Interleaved<F>;
  using P = KBlock<F>;
  using bytes = typename Isa::bytes;
  using ints = typename Isa::ints;
  using f32 = typename Isa::f32;
  static constexpr int group_size = K::group_size, quads = group_size / 4, parts = K::parts;
  static constexpr int most = P::most;
  static constexpr int columns = Isa::registers >= 32 ? 4 : 2;  // at once, as there are registers
  template <int Cols>
  static constexpr size_t streams = 4 / Cols;

  // Small scales and offsets of four groups at once, where the dots of a group are small enough to be multiplied by
  // them as integers, and two groups with the same scale of x are added up.
  static constexpr bool in_words = group_size == 16 && K::in_fours(F::scale.ints) &&
                                   (!K::offset || K::in_fours(F::offset.ints)) && F::codebook.used == 0 &&
                                   !P::code.is_signed &&
                                   I::room_for_words(group_size * most * 127, group_size* P::code.zero * 127);
  static constexpr int at_once = in_words ? 4 : 1, steps = K::period / at_once;
  static_assert(!in_words || K::repeats == 1);

  // Less their zero points small integers may be negative.
  static constexpr bool signed_scales = F::scale.ints.low() < 0, signed_offsets = F::offset.ints.low() < 0;

  template <int g>
  static constexpr int unshifted_by = [] {  // by how many bits codes are left unshifted
    const int by = K::shifted(g), top = most << by, first = (group_size * P::code.zero * 127) << by;
    if (top > Isa::max_unsigned || (in_words && !I::room_for_words(group_size * top * 127, first))) return 0;
    return by;
  }();

  template <int Cols>
  struct Sums {  // of a k-block, before the super-block scales; else of the row
    f32 dots[Cols], offsets[Cols];
  };
  // What a group of a column brings to every row: its scale, its sum, and that times minus the zero point. In words:
  // what a sum starts with, and the sums of this group and the next.
  template <int Cols>
  struct Inputs {
    f32 scale[Cols], sum[Cols], zero[Cols];
    ints first[Cols], two[Cols];
  };

  template <int s>
  static FEWBIT_INLINE void prefetch(const typename K::Panel& panel, size_t k_blocks) {
    constexpr int near = Isa::prefetch_near / 2, far = std::max(Isa::prefetch_far / 4, K::panel_bytes);
    panel.template prefetch<s, s + 1, steps, far, K::period>(k_blocks);
    constexpr int lines = K::step / 4;
#pragma GCC unroll 64
    for (int l = s * lines / steps; l < (s + 1) * lines / steps; ++l) {
      __builtin_prefetch(panel.p + near + 64 * l, 0, 3);
    }
  }
  template <int g, int Cols>
  static FEWBIT_INLINE void inputs(const Activation* const* a, size_t first, Inputs<Cols>& out) {
    constexpr float unit = static_cast<float>(P::code.times) / static_cast<float>(1 << unshifted_by<g>);
    for (int c = 0; c < Cols; ++c) {
      const Activation& x = *a[c];
      out.scale[c] = Isa::splat((group_size == 16 ? x.d16[first + g] : x.d32[first + g]) * unit);
      if constexpr (in_words) {
        if constexpr (P::code.zero != 0) out.first[c] = I::start(-P::code.zero * x.sums[g] * (1 << unshifted_by<g>));
        if constexpr (K::offset && g % 2 == 0) out.two[c] = I::same(x.sums + g), out.sum[c] = Isa::splat(x.d16[g]);
      } else {
        out.sum[c] = Isa::splat(group_size == 16 ? x.s16[first + g] : x.s32[first + g]);
        out.zero[c] = Isa::mul(K::alone ? all_sums(x) : out.sum[c], Isa::splat(static_cast<float>(-P::code.zero)));
      }
    }
  }
  static FEWBIT_INLINE f32 all_sums(const Activation& x) {
    float sum = 0;
    for (int g = 0; g < 8; ++g) sum += x.s32[g];
    return Isa::splat(sum);
  }
  template <int g>
  static FEWBIT_INLINE void codes(const typename K::Panel& panel, bytes* q) {
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((q[i] = K::template code<g * quads + i, unshifted_by<g>>(panel)), ...);
    }(std::make_integer_sequence<int, quads>{});
  }
  // Group g of the period that begins with group `first`.
  template <int g, int Cols>
  static FEWBIT_INLINE void group(const typename K::Panel& panel, const Activation* const* a, size_t first,
                                  const Inputs<Cols>& in, Sums<Cols>& to) {
    bytes q[quads];
    codes<g>(panel, q);
    f32 scale, shift;
    if constexpr (!K::alone) scale = K::template factor<g, false>(panel);
    if constexpr (K::offset) shift = K::template factor<g, K::offset>(panel);
    const int8_t* x[Cols];
    for (int c = 0; c < Cols; ++c) x[c] = a[c]->q + (first + g) * group_size;
    ints sums[1][Cols];
    const bytes* set[1] = {q};
    I::template panel_dot<1, Cols, quads, (most << unshifted_by<g>), P::code.is_signed>(set, x, sums);
    for (int c = 0; c < Cols; ++c) {
      const f32 dots = Isa::to_floats(sums[0][c]);
      if constexpr (K::alone) {
        to.dots[c] = Isa::fma(dots, in.scale[c], to.dots[c]);
        if constexpr (P::code.zero != 0 && g == 0) to.dots[c] = Isa::add(to.dots[c], in.zero[c]);
      } else {
        const f32 own = P::code.zero != 0 ? Isa::fma(dots, in.scale[c], in.zero[c]) : Isa::mul(dots, in.scale[c]);
        to.dots[c] = Isa::fma(own, scale, to.dots[c]);
      }
      if constexpr (K::offset) to.offsets[c] = Isa::fma(shift, in.sum[c], to.offsets[c]);
    }
  }
  // Groups g and g + 1.
  template <int g, int Cols>
  static FEWBIT_INLINE void two_groups(const typename K::Panel& panel, const Activation* const* a,
                                       const Inputs<Cols>* in, bytes scales, bytes shifts, Sums<Cols>& to) {
    constexpr int i = g % 4;
    static_assert(unshifted_by<g> == unshifted_by<g + 1>);
    bytes q[2][quads];
    codes<g>(panel, q[0]);
    codes<g + 1>(panel, q[1]);
    const ints even = I::template weight<i, signed_scales>(scales),
               odd = I::template weight<i + 1, signed_scales>(scales);
    for (int c = 0; c < Cols; ++c) {
      ints sum = I::no_ints();
      sum = I::template weighted<quads, (most << unshifted_by<g>), P::code.zero>(q[0], a[c]->q + g * group_size,
                                                                                 in[0].first[c], even, sum);
      sum = I::template weighted<quads, (most << unshifted_by<g>), P::code.zero>(q[1], a[c]->q + (g + 1) * group_size,
                                                                                 in[1].first[c], odd, sum);
      to.dots[c] = Isa::fma(Isa::to_floats(sum), in[0].scale[c], to.dots[c]);
      if constexpr (K::offset) {
        const ints own = I::dot_words(I::template two_of<i, signed_offsets>(shifts), in[0].two[c]);
        to.offsets[c] = Isa::fma(Isa::to_floats(own), in[0].sum[c], to.offsets[c]);
      }
    }
  }
  template <int s, int Cols>
  static FEWBIT_INLINE void step(const typename K::Panel& panel, const Activation* const* a, size_t first,
                                 const Inputs<Cols>* in, Sums<Cols>& to) {
    if constexpr (in_words) {
      const bytes scales = K::template four<F::scale.ints, s>(panel);
      bytes shifts;
      if constexpr (K::offset) shifts = K::template four<F::offset.ints, s>(panel);
      two_groups<4 * s>(panel, a, in, scales, shifts, to);
      two_groups<4 * s + 2>(panel, a, in + 2, scales, shifts, to);
    } else {
      group<s>(panel, a, first, in[0], to);
    }
  }
  template <int Cols>
  static FEWBIT_INLINE void clear(Sums<Cols>& s) {
    for (int c = 0; c < Cols; ++c) s.dots[c] = s.offsets[c] = Isa::zero();
  }
  template <int Cols>
  static FEWBIT_INLINE void add(const Sums<Cols>& s, const typename K::SuperScales& by, f32* acc) {
    for (int c = 0; c < Cols; ++c) {
      acc[c] = K::has_super_scale ? Isa::fma(s.dots[c], by.d, acc[c]) : Isa::add(s.dots[c], acc[c]);
      if constexpr (K::offset) {
        const f32 v = K::has_super_scale ? Isa::mul(s.offsets[c], by.dmin) : s.offsets[c];
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
  // 16 rows in each of some streams. Sums of several streams stay in memory: what is done for every group, written out
  // for each of them, would be too long.
  template <int Cols>
  struct Rows {
    const uint8_t* set[streams<Cols>];
    f32 acc[streams<Cols>][parts][Cols];
    Sums<Cols> sums[streams<Cols>][parts];
  };
  template <int i, int Cols>
  static FEWBIT_INLINE void visit(Rows<Cols>& rows, size_t here, size_t s, size_t repeat, size_t k_blocks,
                                  const Layout* at, const Activation* const* x) {
    const size_t first = repeat * K::period;
    Inputs<Cols> in[at_once];
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      (inputs<i * at_once + g>(x, first, in[g]), ...);
    }(std::make_integer_sequence<int, at_once>{});
#pragma GCC unroll 1
    for (size_t r = 0; r < here; ++r) {
      const Activation* a[Cols];
      for (int c = 0; c < Cols; ++c) {
        a[c] = x[c];
        // Read anew in every stream: gcc would keep more of it than there are registers.
        if constexpr (at_once > 1) __asm__ volatile("" : "+r"(a[c]));
      }
      const typename K::Panel begin{rows.set[r] + s * K::panel_bytes, 0, rows.set[r], at, s * kBlockK};
      typename K::Panel panel = begin.after(repeat);
      prefetch<i>(panel, k_blocks);
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part) {
        panel.part = part;
        Sums<Cols> sums = rows.sums[r][part];
        step<i>(panel, a, first, in, sums);
        rows.sums[r][part] = sums;
      }
    }
  }
  // Sets of 16 rows: one in each of `here` streams, the first of them number `first`, the others `apart` further.
  template <int Cols>
  static FEWBIT_ONCE void sets(const uint8_t* w, size_t first, size_t apart, size_t here, size_t k, const Layout& at,
                               const Columns<Cols>& columns) {
    if constexpr (streams<Cols> == 1) here = 1;
    Rows<Cols> rows;
    const auto each = [&](auto&& f) FEWBIT_LAMBDA_INLINE {
#pragma GCC unroll 1
      for (size_t r = 0; r < here; ++r) {
        for (int part = 0; part < parts; ++part) f(r, part);
      }
    };
    for (size_t r = 0; r < here; ++r) rows.set[r] = w + (first + r * apart) * 16 * at.row_bytes;
    each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
      clear(rows.sums[r][part]);
      for (int c = 0; c < Cols; ++c) rows.acc[r][part][c] = Isa::zero();
    });
    const size_t k_blocks = (k + kBlockK - 1) / kBlockK;
    for (size_t s = 0; s < k_blocks; ++s) {
      const Activation* a[Cols];
      for (int c = 0; c < Cols; ++c) a[c] = columns.x + s + c * k_blocks;
      const size_t count = K::repeats_in(k - s * kBlockK);
#pragma GCC unroll 1
      for (size_t j = 0; j < count; ++j) {
        [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
          (visit<i>(rows, here, s, j, k_blocks, &at, a), ...);
        }(std::make_integer_sequence<int, steps>{});
      }
      if constexpr (!K::has_super_scale) continue;
      each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
        const typename K::Panel panel{rows.set[r] + s * K::panel_bytes, part, rows.set[r], &at, s * kBlockK};
        add(rows.sums[r][part], K::super_scales(panel), rows.acc[r][part]);
        clear(rows.sums[r][part]);
      });
    }
    each([&](size_t r, int part) FEWBIT_LAMBDA_INLINE {
      if constexpr (!K::has_super_scale) add(rows.sums[r][part], typename K::SuperScales{}, rows.acc[r][part]);
      columns.store(16 * (first + r * apart) + static_cast<size_t>(part) * Isa::L, rows.acc[r][part]);
    });
  }
  template <int Cols>
  static void some(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x, float* y,
                   size_t y_stride) {
    const size_t each = count / streams<Cols>, whole = each * streams<Cols>;
    const Columns<Cols> columns{x, y, y_stride};
    for (size_t i = 0; i < each; ++i) sets(w, i, each, streams<Cols>, k, at, columns);
    if (whole < count) sets(w, whole, 1, count - whole, k, at, columns);
  }
};

// `rows` is a multiple of 16, k of what `interleaved_values` says.
template <class F>
void interleaved_gemv_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x,
                           size_t columns, float* y, size_t y_stride) {
  using K = InterleavedGemv<F>;
  const size_t k_blocks = (k + kBlockK - 1) / kBlockK;
  const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
    K::template some<Cols>(w, rows / 16, k, at, x + c * k_blocks, y + c * y_stride, y_stride);
  };
  constexpr int most = K::columns;
  size_t c = 0;
  for (; c + most <= columns; c += most) some(std::integral_constant<int, most>{}, c);
  for (; c + 2 <= columns; c += 2) some(std::integral_constant<int, 2>{}, c);
  if (c < columns) some(std::integral_constant<int, 1>{}, c);
}
