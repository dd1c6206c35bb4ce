// Skinny GEMM: up to twice eight columns on matrix tiles (AMX, int8). The codes of interleaved rows are right tiles as
// they come. A left tile holds two groups' activations in rows of their own and zeros elsewhere, so that a line of
// results is what 16 rows give for one group and one column: a scale is applied to all rows at once.
//
// Three things go on at once: k-block s is decoded, the tiles of k-block s - 1 are multiplied, the sums of k-block s -
// 2 are scaled.

constexpr int kSkinnyRows = 16, kSkinnyColumns = 8, kMostSkinnySets = 2;

// Eight columns of a k-block of activations, for weights with a scale for `group_size` values.
template <int group_size>
struct alignas(64) LeftColumns {
  static constexpr int groups = kBlockK / group_size, tiles = groups / 2;
  static constexpr int in_right = 64 / group_size;  // groups in a right tile
  int8_t codes[tiles][16][64];
  float scales[groups][kSkinnyColumns], sums[groups][kSkinnyColumns];  // sums: times their scale
};

template <int group_size>
inline void put_left(const Activation& a, size_t column, LeftColumns<group_size>& out) {
  for (size_t g = 0; g < out.groups; ++g) {
    std::memcpy(out.codes[g / 2][g % 2 * kSkinnyColumns + column] + g % out.in_right * group_size, a.q + g * group_size,
                group_size);
    out.scales[g][column] = group_size == 16 ? a.d16[g] : a.d32[g];
    out.sums[g][column] = group_size == 16 ? a.s16[g] : a.s32[g];
  }
}
template <int group_size>
inline void pack_left(const Activation* x, size_t x_stride, size_t columns, void* to) {
  auto& out = *static_cast<LeftColumns<group_size>*>(to);
  std::memset(to, 0, sizeof out);
  for (size_t c = 0; c < columns; ++c) put_left(x[c * x_stride], c, out);
}
// The same from floats: what other kernels want is not made.
template <int group_size>
inline void quantize_left_columns(const float* x, size_t x_stride, size_t columns, void* to) {
  auto& out = *static_cast<LeftColumns<group_size>*>(to);
  std::memset(to, 0, sizeof out);
  for (size_t c = 0; c < columns; ++c) {
    Activation a;
    quantize_k_block<false>(x + c * x_stride, a);
    put_left(a, c, out);
  }
}
inline void quantize_left(int group_size, const float* x, size_t x_stride, size_t columns, void* to) {
  (group_size == 16 ? quantize_left_columns<16> : quantize_left_columns<32>)(x, x_stride, columns, to);
}

FEWBIT_INLINE void store_product(int p, int32_t* sums) {
  if (p % 2 == 0) {
    _tile_stored(0, sums, 64);
    _tile_zero(0);
  } else {
    _tile_stored(1, sums, 64);
    _tile_zero(1);
  }
}

template <class F>
struct Skinny {
  using K = Interleaved<F>;
  using Panel = typename K::Panel;
  using X = LeftColumns<K::group_size>;
  static constexpr int groups = X::groups, lefts = X::tiles, in_right = X::in_right;
  static constexpr int tiles = kBlockK / 64;  // right ones
  static constexpr bool is_signed = F::codes.is_signed || F::codes.zero != 0 || F::codebook.used > 0;

  // What a thread needs beside its stack. What is stored and what is loaded soon after it must not lie a multiple of
  // 4096 bytes apart: the core would take the one for the other, and wait. Hence the gaps.
  struct alignas(4096) Scratch {
    struct {
      uint8_t of[tiles][16][64];
      uint8_t gap[2048];
    } codes[2];
    struct {
      int32_t lines[lefts][16][16];
      uint8_t gap[2048];
    } sums[kMostSkinnySets][2];
    struct {
      float scale[groups][16], shift[K::offset ? groups : 1][16];
    } factors[3];
  };

  // Four codes of every row as numbers: signed bytes, or unsigned ones where none is below 0.
  template <int q>
  static FEWBIT_INLINE __m512i number(const Panel& panel) {
    __m512i v = K::template stored<q>(panel);
    if constexpr (F::codebook.used > 0) return Isa::template lookup<F::codebook, 0>(v);
    static_assert(F::codes.times <= 2 && (F::codes.zero == 0 || F::codes.bits() < 8));
    if constexpr (F::codes.times == 2) v = _mm512_add_epi8(v, v);
    if constexpr (F::codes.zero != 0) v = _mm512_sub_epi8(v, _mm512_set1_epi8(F::codes.zero));
    return v;
  }
  template <int t>
  static FEWBIT_INLINE void decode(const Panel& panel, const typename K::SuperScales& by, uint8_t (*out)[16][64],
                                   auto& factors) {
    [&]<int... q>(std::integer_sequence<int, q...>) FEWBIT_LAMBDA_INLINE {
      (_mm512_store_si512(out[t][q], number<16 * t + q>(panel)), ...);
    }(std::make_integer_sequence<int, 16>{});
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      (_mm512_store_ps(factors.scale[t * in_right + g], K::template scale<t * in_right + g>(panel, by)), ...);
      if constexpr (K::offset) {
        (_mm512_store_ps(factors.shift[t * in_right + g], K::template offset_of<t * in_right + g>(panel, by)), ...);
      }
    }(std::make_integer_sequence<int, in_right>{});
  }
  // Product i of a k-block: left tile i / Sets of a set. Its own tile is zero: it is new, or the product before the
  // last one was stored.
  template <int i, int Sets>
  static FEWBIT_INLINE void product(const uint8_t (*codes)[16][64], const X* x) {
    constexpr int each = Sets * in_right / 2;  // products of a right tile
    if constexpr (i % each == 0) _tile_loadd(6, codes[i / each], 64);
    _tile_loadd(4, x[i % Sets].codes[i / Sets], 64);
    if constexpr (is_signed) {
      if constexpr (i % 2 == 0)
        _tile_dpbssd(0, 4, 6);
      else
        _tile_dpbssd(1, 4, 6);
    } else {
      if constexpr (i % 2 == 0)
        _tile_dpbsud(0, 4, 6);
      else
        _tile_dpbsud(1, 4, 6);
    }
    _tile_zero(4);
    if constexpr (i % each == each - 1) _tile_zero(6);
  }
  static FEWBIT_INLINE __m512 line(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_load_si512(p)); }
  template <int j>
  static FEWBIT_INLINE void scale(const int32_t (*lines)[16], const auto& factors, const X& x, __m512* acc) {
    const __m512 s0 = _mm512_load_ps(factors.scale[2 * j]), s1 = _mm512_load_ps(factors.scale[2 * j + 1]);
    const auto column = [&](size_t c) FEWBIT_LAMBDA_INLINE {
      const __m512 v0 = line(lines[c]), v1 = line(lines[kSkinnyColumns + c]);
      acc[c] = _mm512_fmadd_ps(v0, _mm512_mul_ps(s0, _mm512_set1_ps(x.scales[2 * j][c])), acc[c]);
      acc[c] = _mm512_fmadd_ps(v1, _mm512_mul_ps(s1, _mm512_set1_ps(x.scales[2 * j + 1][c])), acc[c]);
      if constexpr (K::offset) {
        acc[c] = _mm512_fmadd_ps(_mm512_load_ps(factors.shift[2 * j]), _mm512_set1_ps(x.sums[2 * j][c]), acc[c]);
        acc[c] =
            _mm512_fmadd_ps(_mm512_load_ps(factors.shift[2 * j + 1]), _mm512_set1_ps(x.sums[2 * j + 1][c]), acc[c]);
      }
    };
    [&]<size_t... c>(std::index_sequence<c...>)
        FEWBIT_LAMBDA_INLINE { (column(c), ...); }(std::make_index_sequence<kSkinnyColumns>{});
  }
  // All columns of 16 rows.
  template <int Sets>
  static FEWBIT_INLINE void rows(const uint8_t* w, size_t k_blocks, const Layout& at, const X* x, Scratch& own,
                                 __m512 (*acc)[kSkinnyColumns]) {
    constexpr int products = lefts * Sets;
    for (size_t s = 0; s < k_blocks + 2; ++s) {
      const Panel panel{w + s * K::panel_bytes, 0, w, &at, s * kBlockK};
      typename K::SuperScales by;
      if (s < k_blocks) by = K::super_scales(panel);
      const auto one = [&]<int i>(std::integral_constant<int, i>) FEWBIT_LAMBDA_INLINE {
        constexpr int j = i / Sets, set = i % Sets, before = i > 0 ? i - 1 : 0;
        if (s > 0 && s <= k_blocks) {
          const size_t in = (s - 1) % 2;
          product<i, Sets>(own.codes[in].of, x + (s - 1) * Sets);
          if constexpr (i > 0) store_product(before, own.sums[before % Sets][in].lines[before / Sets][0]);
          if constexpr (i + 1 == products) store_product(i, own.sums[set][in].lines[j][0]);
        }
        if (s > 1) scale<j>(own.sums[set][s % 2].lines[j], own.factors[(s - 2) % 3], x[(s - 2) * Sets + set], acc[set]);
      };
      const auto quarter = [&]<int t>(std::integral_constant<int, t>) FEWBIT_LAMBDA_INLINE {
        if (s < k_blocks) {
          panel.template prefetch<t, t + 1, tiles, Isa::prefetch_far>(k_blocks);
          decode<t>(panel, by, own.codes[s % 2].of, own.factors[s % 3]);
        }
        [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
          (one(std::integral_constant<int, products / tiles * t + i>{}), ...);
        }(std::make_integer_sequence<int, products / tiles>{});
      };
      quarter(std::integral_constant<int, 0>{});
      quarter(std::integral_constant<int, 1>{});
      quarter(std::integral_constant<int, 2>{});
      quarter(std::integral_constant<int, 3>{});
    }
  }
  template <int Sets>
  static void all(const uint8_t* w, size_t count, size_t k, const Layout& at, const X* x, size_t columns, float* y,
                  size_t y_stride, Scratch& own) {
    const size_t k_blocks = k / kBlockK;
    for (size_t first = 0; first < count; first += 16, w += 16 * at.row_bytes) {
      __m512 acc[Sets][kSkinnyColumns];
      for (auto& set : acc) {
        for (auto& a : set) a = _mm512_setzero_ps();
      }
      rows<Sets>(w, k_blocks, at, x, own, acc);
      [&]<size_t... c>(std::index_sequence<c...>) FEWBIT_LAMBDA_INLINE {  // no index that varies: they are registers
        ((c < columns ? _mm512_storeu_ps(y + c * y_stride + first, acc[c / kSkinnyColumns][c % kSkinnyColumns])
                      : void()),
         ...);
      }(std::make_index_sequence<Sets * kSkinnyColumns>{});
    }
  }
};

// `rows` is a multiple of 16, k of 256.
template <class F>
void skinny_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* packed, size_t columns,
                 float* y, size_t y_stride, void* scratch) {
  using K = Skinny<F>;
  static_assert(sizeof(typename K::Scratch) <= kSkinnyScratch);
  const TileUse in_use;
  const auto all = [&]<int Sets>(std::integral_constant<int, Sets>) {
    K::template all<Sets>(w, rows, k, at, static_cast<const typename K::X*>(packed), columns, y, y_stride,
                          *static_cast<typename K::Scratch*>(scratch));
  };
  if (columns <= kSkinnyColumns)
    all(std::integral_constant<int, 1>{});
  else
    all(std::integral_constant<int, kMostSkinnySets>{});
}

inline void pack_skinny(int group_size, const Activation* x, size_t stride, size_t columns, void* out) {
  (group_size == 16 ? pack_left<16> : pack_left<32>)(x, stride, columns, out);
}
inline size_t skinny_bytes(int group_size) {
  return group_size == 16 ? sizeof(LeftColumns<16>) : sizeof(LeftColumns<32>);
}
