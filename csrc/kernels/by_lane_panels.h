// Some columns by interleaved rows: 16 rows of some k-blocks are unpacked once to bytes that stay in the first-level
// cache, then 8 rows meet up to 4 columns at a time. Meanwhile what is unpacked next is prefetched.

// What a product of panels depends on, not the format: so that formats that are alike share it.
template <int group_size_, bool offset_>
struct LaneTraits {
  static constexpr int group_size = group_size_, groups = kBlockK / group_size, quads = group_size / 4;
  static constexpr bool offset = offset_;
  static constexpr int lanes = Own<LaneTraits>::type::can_smmla ? 32 : 16;

  // A k-block of 16 rows. For products of two rows by two columns eight codes of each row lie together, and every
  // factor stands twice.
  struct alignas(64) Tile {
    uint8_t q[kBlockK / 4][64];
    float scale[groups][lanes], offset[groups][lanes];
  };
};

template <class F>
struct LanePanel {
  using C = LaneCodes<F>;
  using K = Interleaved<F>;
  using I = typename Own<F>::type;
  using Traits = LaneTraits<C::group_size, K::offset>;
  using Tile = typename Traits::Tile;
  using Panel = typename K::Panel;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int quads = C::quads, groups = C::groups;

  static FEWBIT_INLINE void put_codes(const bytes* q, int part, uint8_t (*out)[64]) {
    for (int i = 0; i < quads; i += 2) {
      if constexpr (I::can_smmla) {
        Isa::store(out[i] + 16 * part, I::zip_low(q[i], q[i + 1]));
        Isa::store(out[i + 1] + 16 * part, I::zip_high(q[i], q[i + 1]));
      } else {
        Isa::store(out[i] + 16 * part, q[i]);
        Isa::store(out[i + 1] + 16 * part, q[i + 1]);
      }
    }
  }
  static FEWBIT_INLINE void put_factor(f32 v, int part, float* out) {
    if constexpr (I::can_smmla) {
      Isa::storef(out + 8 * part, I::zip_low(v, v));
      Isa::storef(out + 8 * part + 4, I::zip_high(v, v));
    } else {
      Isa::storef(out + 4 * part, v);
    }
  }
  template <int g, bool is_offset>
  static FEWBIT_INLINE f32 factor(const Panel& panel, const typename C::Fours& fours, f32 super_scale) {
    if constexpr (K::alone) return super_scale;
    const f32 own = C::template factor<g, is_offset>(panel, fours);
    return K::has_super_scale ? Isa::mul(own, super_scale) : own;
  }
  static FEWBIT_ONCE void unpack(Panel panel, Tile& out) {
#pragma GCC unroll 1
    for (panel.part = 0; panel.part < K::parts; ++panel.part) {
      typename K::SuperScales by{};
      if constexpr (K::has_super_scale) by = K::super_scales(panel);
      typename C::Fours fours;
#pragma GCC unroll 1
      for (int first = 0; first < groups; first += K::period) {
        const Panel own = panel.after(static_cast<size_t>(first / K::period));
        times<K::period>([&](auto g) FEWBIT_LAMBDA_INLINE {
          const int to = first + g;
          bytes q[quads];
          C::template codes<g>(own, q);
          put_codes(q, own.part, out.q + to * quads);
          C::template next<g>(own, fours);
          put_factor(factor<g, false>(own, fours, by.d), own.part, out.scale[to]);
          if constexpr (K::offset) put_factor(factor<g, K::offset>(own, fours, by.dmin), own.part, out.offset[to]);
        });
      }
    }
  }
};

// 8 rows by W columns, a lane for each row.
template <class T, int W>
struct LaneProduct {
  using I = typename Own<T>::type;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int quads = T::quads, vectors = 2;
  using Group = LaneGroup<T::group_size, W>;
  f32 acc[vectors][W];

  FEWBIT_INLINE void begin(const float* y, size_t stride, size_t count, bool add) {
    times<W>([&](auto c) FEWBIT_LAMBDA_INLINE {
      for (int v = 0; v < vectors; ++v) acc[v][c] = add && c < count ? Isa::loadu(y + c * stride + 4 * v) : Isa::zero();
    });
  }
  // `half`: of the 16 rows.
  FEWBIT_INLINE void group(const typename T::Tile& tile, int g, size_t half, const Group& x) {
    typename Isa::ints n[vectors][W];
    for (int v = 0; v < vectors; ++v) {
      for (int c = 0; c < W; ++c) n[v][c] = I::start_at(x.start[c]);
    }
    const auto* q = tile.q + g * quads;
    times<quads / 4>([&](auto j) FEWBIT_LAMBDA_INLINE {
      bytes xs[W];
      for (int c = 0; c < W; ++c) xs[c] = Isa::load(reinterpret_cast<const uint8_t*>(x.q[c] + 16 * j));
      times<4>([&](auto l) FEWBIT_LAMBDA_INLINE {
        for (int v = 0; v < vectors; ++v) {
          const bytes w = Isa::load(q[4 * j + l] + 32 * half + 16 * v);
          for (int c = 0; c < W; ++c) n[v][c] = I::template dot_lane<l>(n[v][c], w, xs[c]);
        }
      });
    });
    const f32 d = Isa::loadf(x.d), s = Isa::loadf(x.s);
    for (int v = 0; v < vectors; ++v) {
      const f32 scale = Isa::loadf(tile.scale[g] + 8 * half + 4 * v);
      times<W>([&](auto c) FEWBIT_LAMBDA_INLINE {
        acc[v][c] = Isa::fma(I::template scaled<c>(n[v][c], d, x.minus_start[c]), scale, acc[v][c]);
        if constexpr (T::offset)
          acc[v][c] = I::template fma_lane<c>(acc[v][c], Isa::loadf(tile.offset[g] + 8 * half + 4 * v), s);
      });
    }
  }
  FEWBIT_INLINE void end(float* y, size_t stride, size_t count) const {
    times<W>([&](auto c) FEWBIT_LAMBDA_INLINE {
      if (c >= count) return;
      for (int v = 0; v < vectors; ++v) Isa::storef(y + c * stride + 4 * v, acc[v][c]);
    });
  }
};

// The same by products of two rows by two columns: a sum holds (row 0, column 0), (row 0, column 1), (row 1, column 0),
// (row 1, column 1).
template <class T, int W>
struct PairProduct {
  using I = typename Own<T>::type;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int pairs = W / 2, octets = T::quads / 2, rows = 4;  // rows: by two
  using Group = PairGroup<T::group_size, W>;
  f32 acc[rows][pairs];

  FEWBIT_INLINE void begin(const float* y, size_t stride, size_t count, bool add) {
    const auto at = [&](size_t c, size_t v) FEWBIT_LAMBDA_INLINE {
      return add && c < count ? Isa::loadu(y + c * stride + 4 * v) : Isa::zero();
    };
    each([&](auto p, auto v) FEWBIT_LAMBDA_INLINE {
      const f32 a = at(2 * p, v), b = at(2 * p + 1, v);
      acc[2 * v][p] = I::zip_low(a, b), acc[2 * v + 1][p] = I::zip_high(a, b);
    });
  }
  // For two columns and four rows.
  template <class Fn>
  static FEWBIT_INLINE void each(Fn&& f) {
    times<pairs>([&](auto p) FEWBIT_LAMBDA_INLINE { times<rows / 2>([&](auto v) FEWBIT_LAMBDA_INLINE { f(p, v); }); });
  }
  FEWBIT_INLINE void group(const typename T::Tile& tile, int g, size_t half, const Group& x) {
    typename Isa::ints n[rows][pairs];
    for (int r = 0; r < rows; ++r) {
      for (int p = 0; p < pairs; ++p) n[r][p] = I::start_at(x.start[p]);
    }
    const auto* q = tile.q + g * T::quads;
    times<octets>([&](auto i) FEWBIT_LAMBDA_INLINE {
      bytes xs[pairs];
      for (int p = 0; p < pairs; ++p) xs[p] = Isa::load(reinterpret_cast<const uint8_t*>(x.q[i][p]));
      for (int r = 0; r < rows; ++r) {
        const bytes w = Isa::load(q[2 * i + r % 2] + 32 * half + 16 * (r / 2));
        for (int p = 0; p < pairs; ++p) n[r][p] = I::dot_pairs(n[r][p], w, xs[p]);
      }
    });
    for (int r = 0; r < rows; ++r) {
      const f32 scale = Isa::loadf(tile.scale[g] + 16 * half + 4 * r);
      for (int p = 0; p < pairs; ++p) {
        acc[r][p] = Isa::fma(I::scaled(n[r][p], Isa::loadf(x.d[p]), x.minus_start[p]), scale, acc[r][p]);
        if constexpr (T::offset)
          acc[r][p] = Isa::fma(Isa::loadf(tile.offset[g] + 16 * half + 4 * r), Isa::loadf(x.s[p]), acc[r][p]);
      }
    }
  }
  FEWBIT_INLINE void end(float* y, size_t stride, size_t count) const {
    each([&](auto p, auto v) FEWBIT_LAMBDA_INLINE {
      const f32 a = acc[2 * v][p], b = acc[2 * v + 1][p];
      if (2 * p < count) Isa::storef(y + 2 * p * stride + 4 * v, I::even_of(a, b));
      if (2 * p + 1 < count) Isa::storef(y + (2 * p + 1) * stride + 4 * v, I::odd_of(a, b));
    });
  }
};
// For the last `columns` of a set.
template <class T, int columns>
using PanelProduct =
    std::conditional_t<Own<T>::type::can_smmla, PairProduct<T, columns == 1 ? 2 : columns>, LaneProduct<T, columns>>;

// What is prefetched while a k-block is multiplied: lines `begin` to `end` of one that comes later.
struct Upcoming {
  const uint8_t* p;
  size_t k_block_bytes, begin, end;

  FEWBIT_INLINE void prefetch(size_t k_block) const {
    for (size_t l = begin; l < end; ++l) __builtin_prefetch(p + k_block * k_block_bytes + 64 * l, 0, 2);
  }
};

template <class T, int W>
FEWBIT_ONCE void multiply_panel(const typename T::Tile* tiles, size_t k_blocks, size_t half,
                                const typename PanelProduct<T, W>::Group* x, size_t count, float* y, size_t stride,
                                bool add, const Upcoming& upcoming) {
  PanelProduct<T, W> product;
  product.begin(y, stride, count, add);
  for (size_t s = 0; s < k_blocks; ++s) {
    upcoming.prefetch(s);
#pragma GCC unroll 1
    for (int g = 0; g < T::groups; ++g, ++x) product.group(tiles[s], g, half, *x);
  }
  product.end(y, stride, count);
}

// `rows` is a multiple of 16, k of 256; x comes from pack_panels.
template <class F>
void by_lane_panels(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
                    size_t y_stride, void* scratch) {
  using P = LanePanel<F>;
  using T = typename P::Traits;
  constexpr size_t bytes = P::K::panel_bytes, lines = (bytes + 63) / 64;
  auto* tiles = static_cast<typename P::Tile*>(scratch);
  const size_t k_blocks = k / kBlockK, held = Own<F>::type::panel_k_blocks,
               turns = (columns + kLaneSet - 1) / kLaneSet * 2;  // in which tiles are multiplied
  for (size_t r = 0; r < rows; r += 16) {
    const uint8_t* set = w + r * at.row_bytes;
    for (size_t s = 0; s < k_blocks; s += held) {
      const size_t count = std::min(held, k_blocks - s);
      for (size_t i = 0; i < count; ++i) P::unpack({set + (s + i) * bytes, 0, set, &at, (s + i) * kBlockK}, tiles[i]);
      const uint8_t* next = s + count < k_blocks ? set + (s + count) * bytes : set + 16 * at.row_bytes;
      each_set(columns, [&](auto width, size_t c) {
        using Group = typename PanelProduct<T, width>::Group;
        const auto* from = LaneColumns<F>::template set<Group>(x, c / kLaneSet, k) + s * T::groups;
        for (size_t half = 0; half < 2; ++half) {
          const size_t turn = c / kLaneSet * 2 + half;
          const Upcoming upcoming{next, bytes, turn * lines / turns, (turn + 1) * lines / turns};
          multiply_panel<T, width>(tiles, count, half, from, columns - c, y + c * y_stride + r + 8 * half, y_stride,
                                   s > 0, upcoming);
        }
      });
    }
  }
}

template <class F>
void pack_panels(const Activation* x, size_t columns, size_t k, size_t set, void* out) {
  using I = typename Own<F>::type;
  if (columns < I::least_panels) return pack_lanes<F>(x, columns, k, set, out);
  pack_lanes<F, I::can_smmla>(x, columns, k, set, out);
}
