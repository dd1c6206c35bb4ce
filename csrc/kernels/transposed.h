// A k-block of as many rows as a vector has lanes, transposed: vectors that hold four codes of every row, and a
// scale and a shift of every row for each group. The bytes are transposed as they are stored, before the codes are
// taken out of them: there are fewer of them then. What does not lie so that this can be done is decoded row by row.

struct Rows {            // a k-block of some rows
  const uint8_t* p;      // of the first: its blocks; row placement: its codes
  size_t stride, count;  // `count` rows are wanted; there is room for L
  const uint8_t* row;    // row placement: the first row, for the scales
  const Layout* at;
  size_t first, last_group;  // row placement: as in Spot

  FEWBIT_INLINE Spot spot(size_t r) const { return {p + r * stride, row + r * at->row_bytes, at, first, last_group}; }
};

struct TransposedCodes {  // of a k-block of L rows: four of every row, then the next four
  alignas(64) uint8_t quads[kBlockK / 4][Isa::L][4];
};
template <int groups>
struct TransposedScales {
  alignas(64) float scale[groups][Isa::L], shift[groups][Isa::L];
};

// Codes are as `KBlock::code` says; zero points go into the shifts.
template <class F>
struct Transposed {
  using I = typename Own<F>::type;
  using P = KBlock<F>;
  using C = typename P::C;
  using S = Shape<F>;
  using T = TransposedShape<F>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, groups = P::groups;
  static constexpr bool transposes = Isa::can_transpose && T::fits();
  static constexpr bool is_signed = P::code.is_signed;
  static constexpr int zero = P::code.zero;
  static constexpr float times = P::code.times;
  static constexpr bool shifts = zero != 0 || C::offset;

  using Codes = TransposedCodes;
  using Factors = TransposedScales<groups>;
  struct Windows {  // the vectors of the window in use of each piece
    bytes v[T::pieces() > 0 ? T::pieces() : 1][4];
  };

  static FEWBIT_INLINE bytes finish(bytes v) {
    if constexpr (F::codebook.used > 0) v = Isa::template lookup<F::codebook, is_signed ? 0 : P::code.zero>(v);
    if constexpr (P::code.flip) v = Isa::flip(v);
    return v;
  }
  template <int k>
  static constexpr auto quads_at = T::quads_of(k);
  template <int k>
  static constexpr Cover cover_at = T::cover(k);
  template <int>
  static constexpr auto order = T::order();

  template <int i, int k>
  static FEWBIT_INLINE bytes piece(const Rows& rows, Windows& windows) {
    constexpr int number = order<0>[i];
    constexpr Quad q = quads_at<k>[number];
    if constexpr (i == 0 || q.window != quads_at<k>[order<0>[i > 0 ? i - 1 : 0]].window) {
      I::transpose_window(rows.p + cover_at<k>.at[q.window], rows.stride, windows.v[k]);
    }
    constexpr Piece p = S::piece(k, 4 * number);
    if constexpr (T::in_bytes(k))
      return I::template take<q.shift, p.bits, p.dst>(windows.v[k][q.dword]);
    else
      return I::template take_bits<q.byte, q.shift, p.dst>(windows.v[k][q.dword]);
  }
  template <int i>
  static FEWBIT_INLINE void quad(const Rows& rows, Windows& windows, Codes& out) {
    bytes v = piece<i, 0>(rows, windows);
    if constexpr (T::pieces() > 1) v = Isa::either(v, piece<i, 1>(rows, windows));
    if constexpr (T::pieces() > 2) v = Isa::either(v, piece<i, 2>(rows, windows));
    Isa::store(out.quads[order<0>[i]][0], finish(v));
  }
  // One row, not transposed.
  static FEWBIT_INLINE void codes_of_row(const Spot& s, uint8_t* out) {
    Unpacked unpacked;
    const uint8_t* p = s.p;
    if constexpr (P::unpacked) {
      P::unpack(s.p, unpacked);
      p = unpacked.codes;
    }
    [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
      (Isa::store(out + j * Isa::W, P::template codes<j>(p)), ...);
    }(std::make_integer_sequence<int, P::chunks>{});
  }
  // Part `part` of `parts` of the work on codes; all parts must be done in order.
  struct Plain {
    alignas(64) uint8_t rows[L][kBlockK];
  };
  template <int part, int parts>
  static FEWBIT_INLINE void some_codes(const Rows& rows, Windows& windows, Plain& plain, Codes& out) {
    if constexpr (transposes) {
      constexpr int first = part * T::quads / parts, count = (part + 1) * T::quads / parts - first;
      [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
        (quad<first + i>(rows, windows, out), ...);
      }(std::make_integer_sequence<int, count>{});
    } else {
      for (size_t r = part * L / parts; r < (part + 1) * L / parts && r < rows.count; ++r) {
        codes_of_row(rows.spot(r), plain.rows[r]);
      }
      if constexpr (part + 1 == parts) {
        for (int d = 0; d < kBlockK / 4; d += L) Isa::transpose(plain.rows[0] + 4 * d, kBlockK, out.quads[d][0]);
      }
    }
  }
  static FEWBIT_INLINE void store_factors(int g, f32 scale, f32 offset, Factors& out) {
    if constexpr (shifts) {
      f32 shift = zero != 0 ? Isa::mul(scale, Isa::splat(static_cast<float>(-zero))) : Isa::zero();
      if constexpr (C::offset) shift = Isa::fma(offset, Isa::splat(static_cast<float>(F::offset_sign)), shift);
      Isa::storef(out.shift[g], shift);
    }
    Isa::storef(out.scale[g], times == 1 ? scale : Isa::mul(scale, Isa::splat(times)));
  }
  struct SmallSource {
    static constexpr Cover cover = TransposedFactors<F>::cover();
    bytes windows[cover.used > 0 ? cover.used : 1][4];

    template <int byte>
    static constexpr int inside() {
      return byte - cover.at[cover.window(byte, 1)];
    }
    template <int byte>
    static constexpr int place() {
      return inside<byte>() % 4;
    }
    template <int byte>
    FEWBIT_INLINE bytes dword() const {
      return windows[cover.window(byte, 1)][inside<byte>() / 4];
    }
  };
  static FEWBIT_INLINE void small_factors(const Rows& rows, Factors& out) {
    using Of = LaneFactors<F>;
    SmallSource from;
    for (int w = 0; w < from.cover.used; ++w)
      I::transpose_window(rows.p + from.cover.at[w], rows.stride, from.windows[w]);
    constexpr int d_at = F::scale.at, dmin_at = C::offset ? F::offset.at : d_at;
    const f32 d = Of::template half<d_at>(from), dmin = Of::template half<dmin_at>(from);
    constexpr Ints offsets = C::offset ? F::offset.ints : F::scale.ints;
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      (store_factors(g, Isa::mul(Of::template small<F::scale.ints, g>(from), d),
                     C::offset ? Isa::mul(Of::template small<offsets, g>(from), dmin) : d, out),
       ...);
    }(std::make_integer_sequence<int, groups>{});
  }
  // A float for each block, or two f16 side by side.
  static FEWBIT_INLINE void strided_factors(const Rows& rows, Factors& out) {
    constexpr int blocks = kBlockK / F::block, each = groups / blocks;
    for (int b = 0; b < blocks; ++b) {
      f32 scale, offset = Isa::zero();
      I::template reals<F::scale.real, C::offset, (F::scale.at >= 2)>(rows.p + b * F::bytes + F::scale.at, rows.stride,
                                                                      scale, offset);
      for (int g = b * each; g < (b + 1) * each; ++g) store_factors(g, scale, offset, out);
    }
  }
  static FEWBIT_INLINE void factors(const Rows& rows, Factors& out) {
    if constexpr (Isa::can_transpose && TransposedFactors<F>::fits()) {
      small_factors(rows, out);
    } else if constexpr (Isa::can_transpose && C::is_strided()) {
      strided_factors(rows, out);
    } else {
      alignas(64) float plain[L][C::vectors * L], transposed[C::vectors * L][L];
      for (size_t r = 0; r < rows.count; ++r) {
        f32 f[C::vectors];
        P::factors(rows.spot(r), f);
        for (int v = 0; v < C::vectors; ++v) Isa::storef(plain[r] + v * L, f[v]);
      }
      for (int v = 0; v < C::vectors; ++v) {
        Isa::transpose(reinterpret_cast<const uint8_t*>(plain[0] + v * L), sizeof plain[0],
                       reinterpret_cast<uint8_t*>(transposed[v * L]));
      }
      for (int g = 0; g < groups; ++g) {
        store_factors(g, Isa::loadf(transposed[C::slot(g, false)]),
                      C::offset ? Isa::loadf(transposed[C::slot(g, C::offset)]) : Isa::zero(), out);
      }
    }
  }
};

// One k-block of `count` rows. Where rows are missing or end inside the k-block, it is a copy.
template <class F>
struct KBlockCopy {
  alignas(64) uint8_t rows[Isa::L][(Shape<F>::k_block_bytes() + 127) / 64 * 64];
};
template <class F>
FEWBIT_INLINE Rows rows_of(const uint8_t* w, size_t count, size_t k_block, size_t k, const Layout& at,
                           KBlockCopy<F>& copy) {
  using S = Shape<F>;
  constexpr size_t step = S::k_block_bytes();
  Rows rows{w + k_block * step, at.row_bytes, count, w, &at, k_block * kBlockK, S::row && k ? (k - 1) / at.group : 0};
  if (count == Isa::L && (k_block + 1) * kBlockK <= k) return rows;
  std::memset(&copy, 0, sizeof copy);
  const size_t bytes = (k_block + 1) * kBlockK <= k ? step : tail_bytes<F>(k % kBlockK);
  for (size_t r = 0; r < count; ++r) std::memcpy(copy.rows[r], rows.p + r * at.row_bytes, bytes);
  rows.p = copy.rows[0];
  rows.stride = sizeof copy.rows[0];
  return rows;
}
