// Base-3 digits times 8-bit activations, as many rows at once as a vector has lanes. No digit is taken out of its byte:
// with t(n) = 3^n * byte mod 256, digit n is (3 t(n) - t(n + 1)) / 256. So the bytes t(n) and t(n + 1) themselves meet
// the activations of digit n, and the difference of the sums is divided in the scale, all without a rounding. With a
// row in every lane the sums of a group are one vector, as long as it takes. The columns come one after another, so
// that their results do not depend on how many there are. Where a dot product has no room for whole bytes (Pairs),
// digits are taken out after all, and their products added up in 16 bits.

template <class F>
struct TritRows {
  using I = typename Own<F>::type;
  using bytes = typename Isa::bytes;
  using ints = typename Isa::ints;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, groups = kBlockK / 32;
  static constexpr auto& parts = F::codes.parts;
  static constexpr bool whole = Isa::max_unsigned >= 255;

  static constexpr int first_value(int part) {
    int at = 0;
    for (int p = 0; p < part; ++p) at += parts[p].bytes * parts[p].digits;
    return at;
  }
  // The bytes of all rows, four and four.
  static constexpr int quads = (parts[0].bytes + parts[1].bytes + parts[2].bytes) / 4;
  static constexpr int first_quad(int part) {
    int at = 0;
    for (int p = 0; p < part; ++p) at += parts[p].bytes / 4;
    return at;
  }
  struct Panel {
    bytes quads[TritRows::quads];
    f32 scale;
  };
  template <int part>
  static FEWBIT_INLINE void load_part(const Rows& rows, Panel& out) {
    constexpr TritPart t = parts[part];
    bytes* to = out.quads + first_quad(part);
    if constexpr (t.bytes % 16 == 0) {
      for (int b = 0; b < t.bytes; b += 16) I::transpose_window(rows.p + t.first + b, rows.stride, to + b / 4);
    } else {
      static_assert(t.bytes == 4 && t.first >= 12);
      to[0] = last_quad(rows.p + t.first, rows.stride);
    }
  }
  static FEWBIT_INLINE bytes last_quad(const uint8_t* p, size_t stride) {  // nothing past it is read
    bytes window[4];
    I::transpose_window(p - 12, stride, window);
    return window[3];
  }
  static FEWBIT_INLINE void load(const Rows& rows, Panel& out) {
    load_part<0>(rows, out);
    load_part<1>(rows, out);
    load_part<2>(rows, out);
    static_assert(F::scale.real == Real::f16 && F::scale.at >= 14);
    out.scale = I::template halves_of<true>(last_quad(rows.p + F::scale.at - 2, rows.stride));
  }

  struct Sums {  // of t(n) and t(n + 1) times the activations of digit n; or of digits, in `these`
    ints these[groups], next[groups];
  };
  template <int value, int digit, int step, int digits>
  static FEWBIT_INLINE void digits_of(bytes t, const int8_t* x, Sums& sums) {
    if constexpr (digit < digits) {
      constexpr int at = value + digit * step, group = at / 32;
      const bytes next = I::thrice(t);
      if constexpr (whole) {
        sums.these[group] = I::lane_dot(sums.these[group], t, x + at);
        sums.next[group] = I::lane_dot(sums.next[group], next, x + at);
      } else {
        sums.these[group] = I::add_16(sums.these[group], I::two_products(I::digit(t), I::same(x + at)));
      }
      digits_of<value, digit + 1, step, digits>(next, x, sums);
    }
  }
  template <int part>
  static FEWBIT_INLINE void add_part(const Panel& panel, const int8_t* x, Sums& sums) {
    constexpr TritPart t = parts[part];
    [&]<int... q>(std::integer_sequence<int, q...>) FEWBIT_LAMBDA_INLINE {
      (digits_of<first_value(part) + 4 * q, 0, t.bytes, t.digits>(panel.quads[first_quad(part) + q], x, sums), ...);
    }(std::make_integer_sequence<int, t.bytes / 4>{});
  }
  static FEWBIT_INLINE f32 dots(ints these, ints next) {  // if whole, 256 times as much
    if constexpr (whole) return Isa::to_floats(I::thrice_less(these, next));
    return Isa::to_floats(I::dot_words(these, I::ones_16()));
  }
  // One k-block of all rows times one column.
  static FEWBIT_INLINE f32 k_block(const Panel& panel, const Activation& a, f32 acc) {
    Sums sums;
    for (int g = 0; g < groups; ++g) sums.these[g] = sums.next[g] = Isa::no_ints();
    add_part<0>(panel, a.q, sums);
    add_part<1>(panel, a.q, sums);
    add_part<2>(panel, a.q, sums);
    f32 all = Isa::zero(), ones = Isa::zero();
    for (int g = 0; g < groups; ++g) {
      const f32 digits = dots(sums.these[g], sums.next[g]);
      all = Isa::fma(digits, Isa::splat(a.d32[g]), all);
      ones = Isa::add(ones, Isa::splat(a.s32[g]));  // a digit stands for one less
    }
    return Isa::fma(panel.scale, Isa::fnma(ones, Isa::splat(1), whole ? Isa::mul(all, Isa::splat(1.0f / 256)) : all),
                    acc);
  }
  // A k-block of the rows to come, line by line; these rows' next k-block.
  static FEWBIT_INLINE void prefetch(const Rows& rows, const uint8_t* w, size_t k_block, const Layout& at) {
    constexpr size_t step = Shape<F>::k_block_bytes();
    for (size_t c = 0; c < L * step; c += 64) __builtin_prefetch(w + L * (at.row_bytes + k_block * step) + c, 0, 2);
    for (size_t r = 0; r < L; ++r) __builtin_prefetch(rows.p + r * rows.stride + 2 * step, 0, 3);
  }
  template <int Cols>
  static void some_rows(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x,
                        size_t x_stride, float* y, size_t y_stride) {
    f32 acc[Cols];
    for (auto& a : acc) a = Isa::zero();
    KBlockCopy<F> copy;
    for (size_t i = 0; i * kBlockK < k; ++i) {
      const Rows rows = rows_of<F>(w, count, i, k, at, copy);
      prefetch(rows, w, i, at);
      Panel panel;
      load(rows, panel);
      for (int c = 0; c < Cols; ++c) acc[c] = k_block(panel, x[i + c * x_stride], acc[c]);
    }
    for (int c = 0; c < Cols; ++c) {
      alignas(64) float t[L];
      Isa::storef(t, acc[c]);
      std::memcpy(y + c * y_stride, t, count * sizeof(float));
    }
  }
  template <int Cols>
  static void rows(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x, size_t x_stride,
                   float* y, size_t y_stride) {
    for (size_t r = 0; r < count; r += L) {
      const size_t from = count - r >= L || count < L ? r : count - L;  // the last ones again
      some_rows<Cols>(w + from * at.row_bytes, count < L ? count : L, k, at, x, x_stride, y + from, y_stride);
    }
  }
};

template <class F>
using GemvOf = std::conditional_t<F::kind == Kind::trits && Isa::can_transpose, TritRows<F>, Gemv<F>>;
