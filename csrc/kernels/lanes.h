// Many columns without matrix tiles: as many rows as a vector has lanes are decoded once and turned on their side, a
// lane for each row. Then four activations meet four codes of all these rows in one instruction, and a scale is applied
// to all rows at once. The same integers as in dot.h; only the order of the float sums differs.

template <class F>
struct Lanewise {
  using P = Span<F>;
  using C = typename P::C;
  using S = Shape<F>;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, groups = P::groups, sub = S::sub;
  static constexpr bool shifts = P::code.zero != 0 || C::offset;

  struct alignas(64) Panel {  // a span of L rows
    uint8_t codes[kSpan / 4][L][4];
    float scale[groups][L], shift[groups][L];
  };

  static void decode(const uint8_t* w, size_t rows, size_t span, size_t k, const Layout& at, Panel& out) {
    alignas(64) uint8_t codes[L][kSpan];
    alignas(64) float factors[C::vectors * L];
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* row = w + r * at.row_bytes;
      for (int c = 0; c < S::span_bytes(); c += 64) __builtin_prefetch(row + (span + 1) * S::span_bytes() + c);
      with_span<F>(row, span, k, at, [&](const Spot& s) FEWBIT_LAMBDA_INLINE { one_row(s, codes[r], factors); });
      for (int g = 0; g < groups; ++g) {
        const float scale = factors[C::slot(g, false)];
        const float offset = C::offset ? F::offset_sign * factors[C::slot(g, true)] : 0;
        out.scale[g][r] = scale * P::code.times;
        out.shift[g][r] = offset - P::code.zero * scale;
      }
    }
    for (int d = 0; d < kSpan / 4; d += L) Isa::transpose(codes[0] + 4 * d, kSpan, out.codes[d][0]);
  }
  static FEWBIT_INLINE void one_row(const Spot& s, uint8_t* codes, float* factors) {
    f32 f[C::vectors];
    Unpacked unpacked;
    const uint8_t* p = s.p;
    if constexpr (P::unpacked) {
      P::unpack(s.p, unpacked);
      p = unpacked.codes;
    }
    P::factors(s, f);
    for (int v = 0; v < C::vectors; ++v) Isa::storef(factors + v * L, f[v]);
    [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
      (Isa::store(codes + j * Isa::W, P::template codes<j>(p)), ...);
    }(std::make_integer_sequence<int, P::chunks>{});
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
          const auto w = Isa::load(panel.codes[g * (sub / 4) + d][0]);
          for (int c = 0; c < Cols; ++c) {
            dots[c] = Isa::template lane_dot<P::code.is_signed>(dots[c], w, a[c * x_stride].q + g * sub + 4 * d);
          }
        }
        const f32 scale = Isa::loadf(panel.scale[g]);
        for (int c = 0; c < Cols; ++c) {
          const Activation& column = a[c * x_stride];
          const f32 both = Isa::mul(scale, Isa::splat(sub == 16 ? column.d16[g] : column.d32[g]));
          acc[c] = Isa::fma(Isa::to_floats(dots[c]), both, acc[c]);
          if constexpr (shifts) {
            acc[c] =
                Isa::fma(Isa::loadf(panel.shift[g]), Isa::splat(sub == 16 ? column.s16[g] : column.s32[g]), acc[c]);
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

template <class F>
void lane_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
               size_t y_stride, void* scratch) {
  using K = Lanewise<F>;
  const size_t spans = (k + kSpan - 1) / kSpan;
  auto* panels = static_cast<typename K::Panel*>(scratch);
  for (size_t first = 0; first < rows; first += K::L) {
    const size_t count = rows - first < K::L ? rows - first : K::L;
    for (size_t i = 0; i < spans; ++i) K::decode(w + first * at.row_bytes, count, i, k, at, panels[i]);
    const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
      K::template multiply<Cols>(panels, spans, x + c * spans, spans, count, y + c * y_stride + first, y_stride);
    };
    size_t c = 0;
    for (; c + 8 <= columns; c += 8) some(std::integral_constant<int, 8>{}, c);
    for (; c + 4 <= columns; c += 4) some(std::integral_constant<int, 4>{}, c);
    for (; c < columns; ++c) some(std::integral_constant<int, 1>{}, c);
  }
}
