// Interleaved rows times some columns, where an instruction multiplies by four activations out of one lane. Four
// rows (a part) by up to eight columns: sums stay in registers for a k-block, activations come packed in the order in
// which they are wanted, and are read anew for every part.

template <class F>
struct ByLane16 {  // 16 rows
  using C = LaneCodes<F>;
  using K = Interleaved<F>;
  using I = typename Own<F>::type;
  using Panel = typename K::Panel;
  using bytes = typename Isa::bytes;
  using ints = typename Isa::ints;
  using f32 = typename Isa::f32;
  static constexpr int group_size = C::group_size, quads = C::quads, groups = C::groups, parts = K::parts;

  // W columns: a set as it is packed, or two of them.
  template <int W>
  struct Columns {
    static constexpr int width = std::min<int>(W, kLaneSet), sets = W / width;
    using Group = LaneGroup<group_size, width>;
    const Group* set[sets];

    template <int c>
    FEWBIT_INLINE const uint8_t* q(int from) const {
      return reinterpret_cast<const uint8_t*>(set[c / width]->q[c % width] + from);
    }
    FEWBIT_INLINE ints start(int c) const { return I::start_at(set[c / width]->start[c % width]); }
    template <int c>
    FEWBIT_INLINE f32 scaled(ints sum) const {
      const Group& x = *set[c / width];
      return I::template scaled<c % width>(sum, Isa::loadf(x.d), x.minus_start[c % width]);
    }
    template <int c>
    FEWBIT_INLINE f32 add_offset(f32 sum, f32 offset) const {
      return I::template fma_lane<c % width>(sum, offset, Isa::loadf(set[c / width]->s));
    }
    FEWBIT_INLINE Columns after(int count) const {
      Columns out = *this;
      for (auto& x : out.set) x += count;
      return out;
    }
    // To be read anew: gcc would keep more of it than there are registers.
    FEWBIT_INLINE void forget() {
      for (auto& x : set) __asm__ volatile("" : "+r"(x));
    }
  };

  // Parts that are taken group by group. Codes that are bytes already take so little work that memory is the limit: for
  // one column it gives most to lines that are read in order, and that nobody prefetches.
  template <int W>
  static constexpr int at_once = W == 1 && F::codes.bits() == 8 ? parts : 1;

  // Eight columns leave no registers for sums of offsets: these come after those of the k-block.
  template <int W>
  static constexpr bool defers_offsets = W > kLaneSet ? K::offset && K::has_super_scale : false;

  template <int W>
  struct Part {
    Panel panel;
    typename C::Fours fours;
    f32 dots[W], offsets[W];  // of a k-block, before the super-block scales; else `dots` is all

    FEWBIT_INLINE void begin(const f32* acc) {
      for (int c = 0; c < W; ++c) dots[c] = K::has_super_scale ? Isa::zero() : acc[c], offsets[c] = Isa::zero();
    }
    template <int g>
    FEWBIT_INLINE void add(const Columns<W>& x) {
      // Factors first: where they share a line with codes, it is then free to be overwritten.
      f32 scale, offset;
      C::template next<g>(panel, fours);
      if constexpr (!K::alone) scale = C::template factor<g, false>(panel, fours);
      if constexpr (K::offset && !defers_offsets<W>) offset = C::template factor<g, K::offset>(panel, fours);
      ints n[W];
      dots_of<g>(x, n);
      times<W>([&](auto c) FEWBIT_LAMBDA_INLINE {
        const f32 sum = x.template scaled<c>(n[c]);
        dots[c] = K::alone ? Isa::add(dots[c], sum) : Isa::fma(sum, scale, dots[c]);
        f32& to = K::has_super_scale ? offsets[c] : dots[c];
        if constexpr (K::offset && !defers_offsets<W>) to = x.template add_offset<c>(to, offset);
      });
    }
    template <int g>
    FEWBIT_INLINE void dots_of(const Columns<W>& x, ints* n) const {
      bytes q[quads];
      if constexpr (W <= kLaneSet) C::template codes<g>(panel, q);
      times<quads / 4>([&](auto j) FEWBIT_LAMBDA_INLINE {
        if constexpr (W > kLaneSet)
          times<4>([&](auto l) FEWBIT_LAMBDA_INLINE { q[l] = C::template code<g, 4 * j + l>(panel); });
        times<W>([&](auto c) FEWBIT_LAMBDA_INLINE {
          const bytes v = Isa::load(x.template q<c>(16 * j));
          if (j == 0) n[c] = x.start(c);
          constexpr int first = W > kLaneSet ? 0 : 4 * j;
          times<4>([&](auto l) FEWBIT_LAMBDA_INLINE { n[c] = I::template dot_lane<l>(n[c], q[first + l], v); });
        });
      });
    }
    // Those of a k-block, by themselves.
    FEWBIT_INLINE void add_offsets(Columns<W> x) {
      times<groups>([&](auto g) FEWBIT_LAMBDA_INLINE {
        C::template next<g>(panel, fours);
        const f32 offset = C::template factor<g, K::offset>(panel, fours);
        times<W>([&](auto c) FEWBIT_LAMBDA_INLINE { offsets[c] = x.template add_offset<c>(offsets[c], offset); });
        x = x.after(1);
        x.forget();
      });
    }
    FEWBIT_INLINE void end(f32* acc) const {
      typename K::SuperScales by;
      if constexpr (K::has_super_scale) by = K::super_scales(panel);
      for (int c = 0; c < W; ++c) {
        acc[c] = K::has_super_scale ? Isa::fma(dots[c], by.d, acc[c]) : dots[c];
        if constexpr (K::has_super_scale && K::offset) acc[c] = Isa::fma(offsets[c], by.dmin, acc[c]);
      }
    }
  };

  // A share of what comes after the panel, and with scales at the end those of the next 16 rows.
  static FEWBIT_INLINE void prefetch(const Panel& panel) {
    constexpr size_t share = K::panel_bytes / parts, far = std::max<size_t>(I::panel_prefetch, K::panel_bytes);
    const uint8_t* p = panel.p + far + static_cast<size_t>(panel.part) * share;
#pragma GCC unroll 32
    for (size_t c = 0; c < share; c += 64) __builtin_prefetch(p + c, 0, 3);
    if constexpr (Shape<F>::row) {
      for (int g = panel.part * groups / parts; g < (panel.part + 1) * groups / parts; ++g) {
        __builtin_prefetch(panel.template real_at<0>(g) + 16 * panel.at->row_bytes, 0, 3);
        if constexpr (K::offset)
          __builtin_prefetch(panel.template real_at<K::offset>(g) + 16 * panel.at->row_bytes, 0, 3);
      }
    }
  }
  template <int W>
  static FEWBIT_INLINE void k_block(Panel panel, Columns<W> x, f32 (*acc)[W]) {
    Part<W> some[at_once<W>];
    for (int i = 0; i < at_once<W>; ++i) {
      some[i].panel = panel;
      some[i].panel.part += i;
      some[i].begin(acc[i]);
    }
#pragma GCC unroll 1
    for (int j = 0; j < K::repeats; ++j) {
      times<K::period>([&](auto g) FEWBIT_LAMBDA_INLINE {
        Columns<W> a = x.after(j * K::period + g);
        a.forget();
        if constexpr (W > kLaneSet) __asm__ volatile("" : "+r"(some[0].panel.p));  // codes of two groups share lines
        times<at_once<W>>([&](auto i) FEWBIT_LAMBDA_INLINE { some[i].template add<g>(a); });
      });
      if constexpr (K::repeats > 1) {
        for (auto& part : some) part.panel = part.panel.after(1);
      }
    }
    if constexpr (defers_offsets<W>) some[0].add_offsets(x);
    for (int i = 0; i < at_once<W>; ++i) some[i].end(acc[i]);
  }
  // W columns, of which `columns` are written.
  template <int W>
  static FEWBIT_ONCE void multiply(const uint8_t* set, size_t k_blocks, const Layout& at, Columns<W> x, size_t columns,
                                   float* y, size_t y_stride) {
    f32 acc[parts][W];
    for (auto& part : acc) {
      for (auto& a : part) a = Isa::zero();
    }
    for (size_t s = 0; s < k_blocks; ++s, x = x.after(groups)) {
#pragma GCC unroll 1
      for (int part = 0; part < parts; part += at_once<W>) {
        const Panel panel{set + s * K::panel_bytes, part, set, &at, s * kBlockK};
        if constexpr (at_once<W> == 1) prefetch(panel);
        k_block<W>(panel, x, acc + part);
      }
    }
    for (size_t c = 0; c < W && c < columns; ++c) {
      for (size_t part = 0; part < parts; ++part) Isa::storef(y + c * y_stride + part * Isa::L, acc[part][c]);
    }
  }
};

// `rows` is a multiple of 16, k of 256; x comes from pack_lanes.
template <class F>
void by_lane_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
                  size_t y_stride, void*) {
  using K = ByLane16<F>;
  for (size_t r = 0; r < rows; r += 16) {
    const auto multiply = [&](auto width, size_t c) {
      typename K::template Columns<width> own;
      for (size_t i = 0; auto& set : own.set)
        set = LaneColumns<F>::template set<typename decltype(own)::Group>(x, c / kLaneSet + i++, k);
      K::template multiply<width>(w + r * at.row_bytes, k / kBlockK, at, own, columns - c, y + c * y_stride + r,
                                  y_stride);
    };
    size_t c = 0;
    for (; c + kLaneSet + 2 < columns; c += 2 * kLaneSet) multiply(std::integral_constant<int, 2 * kLaneSet>{}, c);
    if (c < columns) each_set(columns - c, [&](auto width, size_t i) { multiply(width, c + i); });
  }
}
