// Many columns without matrix tiles: as many rows as a vector has lanes are decoded once and turned on their side, a
// lane for each row. Then four activations meet four codes of all these rows in one instruction, and a scale is applied
// to all rows at once. The same integers as in dot.h; only the order of the float sums differs.

template <class F>
struct Lanewise {
  using T = Turned<F>;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, groups = T::groups, sub = Shape<F>::sub;

  struct Panel {  // a span of L rows
    typename T::Codes codes;
    typename T::Factors factors;
  };

  static void decode(const uint8_t* w, size_t count, size_t span, size_t k, const Layout& at, Panel& out) {
    for (size_t c = 0; c < L * Shape<F>::span_bytes(); c += 64) {  // the same of the rows to come, line by line
      __builtin_prefetch(w + L * (at.row_bytes + span * Shape<F>::span_bytes()) + c, 0, 2);
    }
    SpanCopy<F> copy;
    const Rows rows = rows_of<F>(w, count, span, k, at, copy);
    typename T::Windows windows;
    typename T::Plain plain;
    T::factors(rows, out.factors);
    T::template some_codes<0, 1>(rows, windows, plain, out.codes);
  }
  static void multiply_all(const Panel* panels, size_t spans, const Activation* x, size_t columns, size_t rows,
                           float* y, size_t y_stride) {
    const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
      multiply<Cols>(panels, spans, x + c * spans, spans, rows, y + c * y_stride, y_stride);
    };
    size_t c = 0;
    for (; c + 8 <= columns; c += 8) some(std::integral_constant<int, 8>{}, c);
    for (; c + 4 <= columns; c += 4) some(std::integral_constant<int, 4>{}, c);
    for (; c < columns; ++c) some(std::integral_constant<int, 1>{}, c);
  }
  template <int Cols>
  static void multiply(const Panel* panels, size_t spans, const Activation* x, size_t x_stride, size_t rows, float* y,
                       size_t y_stride) {
    f32 acc[Cols];
    for (auto& a : acc) a = Isa::zero();
    for (size_t i = 0; i < spans; ++i) {
      const Panel& panel = panels[i];
      const Activation* a = x + i;
      for (int g = 0; g < groups; ++g) {
        typename Isa::ints dots[Cols];
        for (auto& d : dots) d = Isa::no_ints();
        for (int d = 0; d < sub / 4; ++d) {
          const auto w = Isa::load(panel.codes.quads[g * (sub / 4) + d][0]);
          for (int c = 0; c < Cols; ++c) {
            dots[c] = Isa::template lane_dot<T::is_signed>(dots[c], w, a[c * x_stride].q + g * sub + 4 * d);
          }
        }
        const f32 scale = Isa::loadf(panel.factors.scale[g]);
        for (int c = 0; c < Cols; ++c) {
          const Activation& column = a[c * x_stride];
          const f32 both = Isa::mul(scale, Isa::splat(sub == 16 ? column.d16[g] : column.d32[g]));
          acc[c] = Isa::fma(Isa::to_floats(dots[c]), both, acc[c]);
          if constexpr (T::shifts) {
            const float sum = sub == 16 ? column.s16[g] : column.s32[g];
            acc[c] = Isa::fma(Isa::loadf(panel.factors.shift[g]), Isa::splat(sum), acc[c]);
          }
        }
      }
    }
    for (int c = 0; c < Cols; ++c) {
      alignas(64) float t[L];
      Isa::storef(t, acc[c]);
      std::memcpy(y + static_cast<size_t>(c) * y_stride, t, rows * sizeof(float));
    }
  }
};

template <class F>
size_t lane_scratch(size_t k) {
  return (k + kSpan - 1) / kSpan * sizeof(typename Lanewise<F>::Panel);
}

// Rows that lie abreast are on their side already.
template <class F>
struct LanesAbreast {
  using K = Abreast<F>;
  using T = Turned<F>;

  static FEWBIT_ONCE void decode(const typename K::Panel& panel, size_t spans, typename Lanewise<F>::Panel& out) {
    panel.template ask<0, 1, 1, K::panel_bytes>(spans);
    const typename K::Late by = K::late_factors(panel);
    [&]<int... q>(std::integer_sequence<int, q...>) FEWBIT_LAMBDA_INLINE {
      (Isa::store(out.codes.quads[q][0], K::template code<q>(panel)), ...);
    }(std::make_integer_sequence<int, kSpan / 4>{});
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      (T::store_factors(g, K::template scale<g>(panel, by), offset<g>(panel, by), out.factors), ...);
    }(std::make_integer_sequence<int, K::groups>{});
  }
  template <int g>
  static FEWBIT_INLINE typename Isa::f32 offset(const typename K::Panel& panel, const typename K::Late& by) {
    if constexpr (!K::offset) return Isa::zero();
    const auto v = K::template factor<g, K::offset>(panel);
    return K::late ? Isa::mul(v, by.dmin) : v;
  }
};

template <class F>
void lane_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
               size_t y_stride, void* scratch) {
  using K = Lanewise<F>;
  const size_t spans = (k + kSpan - 1) / kSpan;
  auto* panels = static_cast<typename K::Panel*>(scratch);
  for (size_t first = 0; first < rows; first += K::L) {
    const size_t count = rows - first < K::L ? rows - first : K::L;
    for (size_t i = 0; i < spans; ++i) K::decode(w + first * at.row_bytes, count, i, k, at, panels[i]);
    K::multiply_all(panels, spans, x, columns, count, y + first, y_stride);
  }
}

// `rows` is a multiple of 16, k of 256.
template <class F>
void lane_rows_abreast(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                       float* y, size_t y_stride, void* scratch) {
  using K = Abreast<F>;
  using L = Lanewise<F>;
  const size_t spans = k / kSpan;
  auto* panels = static_cast<typename L::Panel*>(scratch);
  for (size_t first = 0; first < rows; first += L::L) {
    const uint8_t* set = w + first / 16 * 16 * at.row_bytes;
    const int part = static_cast<int>(first % 16 / L::L);
    for (size_t i = 0; i < spans; ++i) {
      LanesAbreast<F>::decode({set + i * K::panel_bytes, part, set, &at, i * kSpan}, spans, panels[i]);
    }
    L::multiply_all(panels, spans, x, columns, L::L, y + first, y_stride);
  }
}
