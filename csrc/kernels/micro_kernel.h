// Many tokens without matrix tiles: as many rows as a vector has lanes are unpacked once, a lane for each row. Then
// four activations meet four codes of all these rows in one instruction, and a scale is applied to all rows at once.
// The same integers as in gemv.h; only the order of the float sums differs.

// What a product of panels depends on, not the format: so that formats that are alike share it.
template <int group_size_, bool shifts_, bool is_signed_, int most_>
struct PanelTraits {
  static constexpr int group_size = group_size_, groups = kBlockK / group_size, most = most_;
  static constexpr bool shifts = shifts_, is_signed = is_signed_;

  struct alignas(64) Panel {                             // a k-block of L rows
    uint8_t quads[kBlockK / 4][Isa::L][4];               // codes: four of every row, then the next four
    float scale[groups][Isa::L], shift[groups][Isa::L];  // zero points are in the shifts
  };
};
// The largest code, rounded up to where sums of 16 bits (isa/pairs.h) have less room.
constexpr int code_class(int most) { return most <= 15 ? 15 : most <= 31 ? 31 : most <= 63 ? 63 : Isa::max_unsigned; }

template <class T>
struct MicroKernel {
  using f32 = typename Isa::f32;
  using Panel = typename T::Panel;
  static constexpr int L = Isa::L, cols = Isa::micro_columns, sets = Isa::micro_sets;

  static FEWBIT_ONCE void multiply_all(const Panel* panels, size_t k, const Activation* x, size_t columns, size_t rows,
                                       float* y, size_t y_stride) {
    const size_t k_blocks = (k + kBlockK - 1) / kBlockK;
    const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
      size_t r = 0;
      for (; r + sets * L <= rows; r += sets * L) {
        multiply<sets, Cols>(panels + r / L * k_blocks, k, x + c * k_blocks, L, y + c * y_stride + r, y_stride);
      }
      for (; r < rows; r += L) {
        multiply<1, Cols>(panels + r / L * k_blocks, k, x + c * k_blocks, rows - r < L ? rows - r : L,
                          y + c * y_stride + r, y_stride);
      }
    };
    size_t c = 0;
    for (; c + cols <= columns; c += cols) some(std::integral_constant<int, cols>{}, c);
    constexpr int fewer = cols / 2 > 2 ? cols / 2 : 2;
    for (; c + fewer <= columns; c += fewer) some(std::integral_constant<int, fewer>{}, c);
    for (; c < columns; ++c) some(std::integral_constant<int, 1>{}, c);
  }
  // `rows` of each set of L.
  template <int sets, int Cols>
  static void multiply(const Panel* panels, size_t k, const Activation* x, size_t rows, float* y, size_t y_stride) {
    constexpr int group_size = T::group_size;
    const size_t k_blocks = (k + kBlockK - 1) / kBlockK, all = (k + group_size - 1) / group_size;
    f32 acc[sets][Cols];
    for (auto& set : acc) {
      for (auto& a : set) a = Isa::zero();
    }
    for (size_t i = 0; i < k_blocks; ++i) {
      const int groups = static_cast<int>(std::min<size_t>(T::groups, all - i * T::groups));
      for (int g = 0; g < groups; ++g) {
        const typename Isa::bytes* codes[sets];
        const int8_t* q[Cols];
        for (int s = 0; s < sets; ++s) {
          codes[s] = reinterpret_cast<const typename Isa::bytes*>(panels[s * k_blocks + i].quads[g * (group_size / 4)]);
        }
        for (int c = 0; c < Cols; ++c) q[c] = x[c * k_blocks + i].q + g * group_size;
        typename Isa::ints dots[sets][Cols];
        Isa::template panel_dot<sets, Cols, group_size / 4, T::most, T::is_signed>(codes, q, dots);
        for (int s = 0; s < sets; ++s) {
          const Panel& factors = panels[s * k_blocks + i];
          for (int c = 0; c < Cols; ++c) {
            const Activation& column = x[c * k_blocks + i];
            const float d = group_size == 16 ? column.d16[g] : column.d32[g],
                        sum = group_size == 16 ? column.s16[g] : column.s32[g];
            const f32 both = Isa::mul(Isa::loadf(factors.scale[g]), Isa::splat(d));
            acc[s][c] = Isa::fma(Isa::to_floats(dots[s][c]), both, acc[s][c]);
            if constexpr (T::shifts) acc[s][c] = Isa::fma(Isa::loadf(factors.shift[g]), Isa::splat(sum), acc[s][c]);
          }
        }
      }
    }
    for (int s = 0; s < sets; ++s) {
      for (int c = 0; c < Cols; ++c) {
        alignas(64) float t[L];
        Isa::storef(t, acc[s][c]);
        std::memcpy(y + static_cast<size_t>(c) * y_stride + s * L, t, rows * sizeof(float));
      }
    }
  }
};

template <class F>
struct PackedPanel {
  using P = KBlock<F>;
  using K = Interleaved<F>;
  using f32 = typename Isa::f32;
  static constexpr bool offset = F::offset.present;
  static constexpr int L = Isa::L, zero = P::code.zero;
  using Traits = PanelTraits<Shape<F>::group_size, (zero != 0 || offset), P::code.is_signed, code_class(P::most)>;
  using Panel = typename Traits::Panel;

  static FEWBIT_INLINE void store_factors(int g, f32 scale, f32 own_offset, Panel& out) {
    if constexpr (Traits::shifts) {
      f32 shift = zero != 0 ? Isa::mul(scale, Isa::splat(static_cast<float>(-zero))) : Isa::zero();
      if constexpr (offset) shift = Isa::fma(own_offset, Isa::splat(static_cast<float>(F::offset_sign)), shift);
      Isa::storef(out.shift[g], shift);
    }
    constexpr float times = P::code.times;
    Isa::storef(out.scale[g], times == 1 ? scale : Isa::mul(scale, Isa::splat(times)));
  }
  static FEWBIT_ONCE void unpack(const typename K::Panel& panel, size_t k, Panel& out) {
    panel.template prefetch<0, 1, 1, K::panel_bytes>(k_blocks(k));
    const typename K::SuperScales by = K::super_scales(panel);
    constexpr int quads = kBlockK / 4 / K::repeats;
    const size_t count = K::repeats_in(k - panel.first);
#pragma GCC unroll 1
    for (size_t j = 0; j < count; ++j) {
      const auto own = panel.after(j);
      [&]<int... q>(std::integer_sequence<int, q...>) FEWBIT_LAMBDA_INLINE {
        (Isa::store(out.quads[j * quads + q][0], K::template code<q>(own)), ...);
      }(std::make_integer_sequence<int, quads>{});
      [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
        (store_factors(static_cast<int>(j) * K::period + g, K::template scale<g>(own, by), offset_of<g>(own, by), out),
         ...);
      }(std::make_integer_sequence<int, K::period>{});
    }
  }
  template <int g>
  static FEWBIT_INLINE f32 offset_of(const typename K::Panel& panel, const typename K::SuperScales& by) {
    if constexpr (!offset) return Isa::zero();
    const f32 v = K::template factor<g, offset>(panel);
    return K::has_super_scale ? Isa::mul(v, by.dmin) : v;
  }
  // Rows as they lie in the file.
  static FEWBIT_ONCE void unpack_rows(const uint8_t* w, size_t count, size_t k_block, size_t k, const Layout& at,
                                      Panel& out) {
    for (size_t c = 0; c < L * Shape<F>::k_block_bytes(); c += 64) {  // the same of the rows to come, line by line
      __builtin_prefetch(w + L * (at.row_bytes + k_block * Shape<F>::k_block_bytes()) + c, 0, 2);
    }
    KBlockCopy<F> copy;
    const Rows rows = rows_of<F>(w, count, k_block, k, at, copy);
    RowPanel<F>::factors(
        rows, [&](int g, f32 scale, f32 own_offset) FEWBIT_LAMBDA_INLINE { store_factors(g, scale, own_offset, out); });
    RowPanel<F>::codes(rows, out.quads);
  }
  static constexpr size_t k_blocks(size_t k) { return (k + kBlockK - 1) / kBlockK; }
  // Panels that are unpacked together, so that tokens come from far away less often. They must stay in the second-level
  // cache.
  static constexpr size_t held(size_t k) {
    constexpr size_t near = 192 << 10, most = 8;
    const size_t fit = near / ((k_blocks(k) + (k == 0)) * sizeof(Panel));
    return fit < 1 ? 1 : fit > most ? most : fit;
  }
};

template <class F>
size_t micro_scratch(size_t k) {
  return PackedPanel<F>::held(k) * PackedPanel<F>::k_blocks(k) * sizeof(typename PackedPanel<F>::Panel);
}

// Interleaved rows, a multiple of 16 of them; of a format that cannot be interleaved, rows as in the file.
template <class F>
void micro_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                float* y, size_t y_stride, void* scratch) {
  using P = PackedPanel<F>;
  const size_t k_blocks = P::k_blocks(k), together = P::held(k) * P::L;
  auto* panels = static_cast<typename P::Panel*>(scratch);
  const auto unpack = [&](size_t row, size_t k_block, typename P::Panel& out) FEWBIT_LAMBDA_INLINE {
    if constexpr (Interleaved<F>::can()) {
      const uint8_t* set = w + row / 16 * 16 * at.row_bytes;
      const int part = static_cast<int>(row % 16 / P::L);
      P::unpack({set + k_block * P::K::panel_bytes, part, set, &at, k_block * kBlockK}, k, out);
    } else {
      P::unpack_rows(w + row * at.row_bytes, std::min<size_t>(rows - row, P::L), k_block, k, at, out);
    }
  };
  for (size_t first = 0; first < rows; first += together) {
    const size_t count = std::min(rows - first, together);
    for (size_t r = 0; r < count; r += P::L) {
      for (size_t i = 0; i < k_blocks; ++i) unpack(first + r, i, panels[r / P::L * k_blocks + i]);
    }
    MicroKernel<typename P::Traits>::multiply_all(panels, k, x, columns, count, y + first, y_stride);
  }
}
