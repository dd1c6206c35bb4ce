// A k-block of as many rows as a vector has lanes, for formats whose rows cannot be interleaved: grids, base-3 digits
// and a few more. Codes and scales are decoded row by row, then transposed.

struct Rows {            // a k-block of some rows
  const uint8_t* p;      // of the first: its blocks; row placement: its codes
  size_t stride, count;  // `count` rows are wanted; there is room for L
  const uint8_t* row;    // row placement: the first row, for the scales
  const Layout* at;
  size_t first, last_group;  // row placement: as in Spot

  FEWBIT_INLINE Spot spot(size_t r) const { return {p + r * stride, row + r * at->row_bytes, at, first, last_group}; }
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

template <class F>
struct RowPanel {
  using P = KBlock<F>;
  using C = typename P::C;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L;

  static FEWBIT_INLINE void codes_of_row(const Spot& s, uint8_t* out) {
    [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
      (Isa::store(out + j * Isa::W, P::template codes<j>(s.p)), ...);
    }(std::make_integer_sequence<int, P::chunks>{});
  }
  static void codes(const Rows& rows, uint8_t (*quads)[L][4]) {
    alignas(64) uint8_t plain[L][kBlockK];
    for (size_t r = 0; r < rows.count; ++r) codes_of_row(rows.spot(r), plain[r]);
    for (int d = 0; d < kBlockK / 4; d += L) Isa::transpose(plain[0] + 4 * d, kBlockK, quads[d][0], Isa::W);
  }
  // Calls put(group, scale, offset).
  template <class Put>
  static FEWBIT_INLINE void factors(const Rows& rows, Put&& put) {
    alignas(64) float plain[L][C::vectors * L], transposed[C::vectors * L][L];
    for (size_t r = 0; r < rows.count; ++r) {
      f32 f[C::vectors];
      P::factors(rows.spot(r), f);
      for (int v = 0; v < C::vectors; ++v) Isa::storef(plain[r] + v * L, f[v]);
    }
    for (int v = 0; v < C::vectors; ++v) {
      Isa::transpose(reinterpret_cast<const uint8_t*>(plain[0] + v * L), sizeof plain[0],
                     reinterpret_cast<uint8_t*>(transposed[v * L]), Isa::W);
    }
    for (int g = 0; g < P::groups; ++g) {
      put(g, Isa::loadf(transposed[C::slot(g, false)]),
          C::offset ? Isa::loadf(transposed[C::slot(g, C::offset)]) : Isa::zero());
    }
  }
};
