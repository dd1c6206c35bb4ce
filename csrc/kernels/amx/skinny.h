// Skinny GEMM: a few columns on matrix tiles (AMX, int8): 16 rows of one k-block at a time become tiles of 8-bit
// numbers. Scales belong to groups of 16 or 32 values, so the sums of different groups must not mix: the right tiles
// hold each group's activations in columns of their own and zeros elsewhere, and a result tile holds two groups of
// eight columns side by side.
//
// Three things go on at once: k-block s + 1 is decoded, the tiles of k-block s are multiplied, the sums of k-block s -
// 1 are scaled.

constexpr int kSkinnyRows = 16, kSkinnyColumns = 8;
constexpr int kSkinnyChunks = kBlockK / 64;  // left tiles of a k-block: 16 rows of 64 numbers

// The layout of activations with a scale for `group_size` values in right tiles: a result tile holds two groups.
template <int group_size>
struct SkinnyShape {
  static constexpr int groups = kBlockK / group_size, results = groups / 2;
  static constexpr int in_chunk = 64 / group_size;  // groups in a left tile
  static constexpr int chunk_of(int result) { return 2 * result / in_chunk; }
};

// Activations of a k-block.
template <int group_size>
struct alignas(64) SkinnyColumns {
  int8_t tiles[SkinnyShape<group_size>::results][1024];
  float scales[SkinnyShape<group_size>::results][16];  // of the group and column of each lane
  float sums[SkinnyShape<group_size>::results][16];    // scale times sum
};

template <int group_size>
inline void pack_skinny(const Activation* x, size_t x_stride, size_t columns, SkinnyColumns<group_size>& out) {
  using S = SkinnyShape<group_size>;
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  for (int g = 0; g < S::groups; ++g) {
    for (size_t c = 0; c < columns; ++c) {
      const Activation& a = x[c * x_stride];
      const size_t lane = static_cast<size_t>(g % 2 * kSkinnyColumns) + c;
      out.scales[g / 2][lane] = a.d16[g * group_size / 16];
      out.sums[g / 2][lane] = group_size == 16 ? a.s16[g] : a.s32[g];
      int8_t* tile = out.tiles[g / 2] + g % S::in_chunk * (group_size / 4) * 64 + lane * 4;
      for (int d = 0; d < group_size / 4; ++d) std::memcpy(tile + d * 64, a.q + g * group_size + 4 * d, 4);
    }
  }
}

template <class F>
struct Skinny {
  using P = KBlock<F>;
  using C = typename P::C;
  static constexpr int group_size = Shape<F>::group_size;
  static constexpr bool is_signed =
      P::code.is_signed || P::code.zero != 0 || P::code.times != 1 || F::codebook.used > 0;

  // 64 numbers: signed bytes, or unsigned ones where no zero point takes them below zero.
  template <int j>
  static FEWBIT_INLINE __m512i numbers(const uint8_t* codes) {
    if constexpr (F::kind == Kind::planes) {
      __m512i v = P::template stored<j, false>(codes);
      if constexpr (F::codebook.used > 0) return Isa::template lookup<F::codebook, 0>(v);
      if constexpr (F::codes.times == 2) v = _mm512_add_epi8(v, v);
      if constexpr (F::codes.zero != 0) v = _mm512_sub_epi8(v, _mm512_set1_epi8(F::codes.zero));
      static_assert(F::codes.times <= 2 && (F::codes.zero == 0 || F::codes.bits() < 8));
      return v;
    } else {
      return _mm512_sub_epi8(P::template codes<j>(codes), _mm512_set1_epi8(P::code.zero));
    }
  }
  static FEWBIT_INLINE void decode(const Spot& s, uint8_t* out, float* factors) {
    __m512 f[C::vectors];
    Unpacked unpacked;
    const uint8_t* codes = s.p;
    if constexpr (P::unpacked) {
      P::unpack(s.p, unpacked);
      codes = unpacked.codes;
    }
    P::factors(s, f);
    for (int v = 0; v < C::vectors; ++v) _mm512_store_ps(factors + 16 * v, f[v]);
    [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
      (_mm512_store_si512(out + 1024 * j, numbers<j>(codes)), ...);
    }(std::make_integer_sequence<int, kSkinnyChunks>{});
  }
  // The factors of the groups of result tile t, for each lane.
  template <int t, bool is_offset>
  static FEWBIT_INLINE __m512 of_lanes(const float* factors) {
    constexpr auto lanes = [] {
      std::array<int, 16> out{};
      for (int l = 0; l < 16; ++l) out[l] = C::slot(2 * t + l / kSkinnyColumns, is_offset) % 16;
      return out;
    }();
    constexpr int vector = C::slot(2 * t, is_offset) / 16;
    return Isa::template spread<lanes>(_mm512_load_ps(factors + 16 * vector));
  }
  // Adds the scaled sums of one row.
  static FEWBIT_INLINE __m512 scale(const int32_t* sums, const float* factors, const SkinnyColumns<group_size>& x,
                                    __m512 acc) {
    [&]<int... t>(std::integer_sequence<int, t...>) FEWBIT_LAMBDA_INLINE {
      (
          [&]() FEWBIT_LAMBDA_INLINE {
            const __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 256 * t));
            const __m512 s = _mm512_mul_ps(of_lanes<t, false>(factors), _mm512_load_ps(x.scales[t]));
            acc = _mm512_fmadd_ps(v, s, acc);
            if constexpr (C::offset) {
              const __m512 o = of_lanes<t, true>(factors), z = _mm512_load_ps(x.sums[t]);
              acc = F::offset_sign > 0 ? _mm512_fmadd_ps(o, z, acc) : _mm512_fnmadd_ps(o, z, acc);
            }
          }(),
          ...);
    }(std::make_integer_sequence<int, SkinnyShape<group_size>::results>{});
    return acc;
  }
};

// What a thread needs beside its stack. What is stored and what is loaded for the same row must not lie a multiple of
// 4096 bytes apart: the core would take the one for the other, and wait. Hence the gaps.
template <class F>
struct alignas(4096) SkinnyScratch {
  using S = SkinnyShape<Skinny<F>::group_size>;
  uint8_t codes[2][kSkinnyChunks][1024];
  uint8_t gap[512];
  int32_t sums[2][S::results][256];
  float acc[kSkinnyRows][16];
  struct Factors {
    float of_row[kSkinnyRows][Skinny<F>::C::vectors * 16];
    uint8_t gap[1408];
  } factors[3];
};

// Product p of a k-block. Its tile is zero: it is new, or the product before the last one was stored.
template <class F>
FEWBIT_INLINE void skinny_product(const uint8_t (*codes)[1024], const SkinnyColumns<Skinny<F>::group_size>& x, int p) {
  _tile_loadd(4, codes[SkinnyShape<Skinny<F>::group_size>::chunk_of(p)], 64);
  _tile_loadd(6, x.tiles[p], 64);
  if constexpr (Skinny<F>::is_signed) {
    if (p % 2 == 0)
      _tile_dpbssd(0, 4, 6);
    else
      _tile_dpbssd(1, 4, 6);
  } else {
    if (p % 2 == 0)
      _tile_dpbusd(0, 4, 6);
    else
      _tile_dpbusd(1, 4, 6);
  }
  zero_operands();
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

// Prefetches what a row holds about 1 KiB later to the second-level cache; after the row's end comes the one 16 below.
template <class F>
FEWBIT_INLINE void prefetch_skinny(const uint8_t* row, size_t k_block, size_t k_blocks, const Layout& at) {
  constexpr size_t bytes = Shape<F>::k_block_bytes(), distance = 1024 / bytes;
  const size_t to = k_block + distance;
  const uint8_t* p = row + (to < k_blocks ? to * bytes : kSkinnyRows * at.row_bytes + (to - k_blocks) * bytes);
  for (size_t c = 0; c < bytes; c += 64) __builtin_prefetch(p + c, 0, 2);
}

template <class F>
void skinny_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* packed, size_t columns,
                 float* y, size_t y_stride, void* scratch) {
  using K = Skinny<F>;
  const TileUse in_use;
  static_assert(sizeof(SkinnyScratch<F>) <= kSkinnyScratch);
  auto& own = *static_cast<SkinnyScratch<F>*>(scratch);
  const auto* x = static_cast<const SkinnyColumns<K::group_size>*>(packed);
  const size_t k_blocks = (k + kBlockK - 1) / kBlockK;
  constexpr int products = SkinnyShape<K::group_size>::results;
  for (size_t first = 0; first < rows; first += kSkinnyRows) {
    const size_t count = rows - first < kSkinnyRows ? rows - first : kSkinnyRows;
    for (auto& row : own.acc) _mm512_store_ps(row, _mm512_setzero_ps());
    for (size_t s = 0; s < k_blocks + 2; ++s) {  // decodes k-block s, multiplies s - 1, scales s - 2
      int done = 0;
      for (size_t r = 0; r < kSkinnyRows; ++r) {
        if (s < k_blocks && r < count) {
          const uint8_t* row = w + (first + r) * at.row_bytes;
          prefetch_skinny<F>(row, s, k_blocks, at);
          with_k_block<F>(row, s, k, at, [&](const Spot& spot) FEWBIT_LAMBDA_INLINE {
            K::decode(spot, own.codes[s % 2][0] + r * 64, own.factors[s % 3].of_row[r]);
          });
        }
        if (s > 0 && s <= k_blocks) {  // a product, and the result of the one before, which is there by now
          const int due = static_cast<int>((r + 1) * (products + 1) / kSkinnyRows);
          for (; done < due; ++done) {
            if (done > 0) store_product(done - 1, own.sums[(s - 1) % 2][done - 1]);
            if (done < products) skinny_product<F>(own.codes[(s - 1) % 2], x[s - 1], done);
          }
        }
        if (s > 1) {
          const __m512 sum = K::scale(own.sums[s % 2][0] + r * 16, own.factors[(s - 2) % 3].of_row[r], x[s - 2],
                                      _mm512_load_ps(own.acc[r]));
          _mm512_store_ps(own.acc[r], sum);
        }
      }
    }
    for (size_t r = 0; r < count; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        y[c * y_stride + first + r] = own.acc[r][c] + own.acc[r][c + kSkinnyColumns];
      }
    }
  }
}
