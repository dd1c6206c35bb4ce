// A few columns on matrix tiles (AMX, int8): 16 rows of one span at a time become tiles of 8-bit numbers. Scales belong
// to groups of 16 or 32 values, so the sums of different groups must not mix: the right tiles hold each group's
// activations in columns of their own and zeros elsewhere, and a result tile holds two groups of eight columns side by
// side.
//
// Three things go on at once: span s + 1 is decoded, the tiles of span s are multiplied, the sums of span s - 1 are
// scaled.

constexpr int kFewRows = 16, kFewColumns = 8;
constexpr int kFewChunks = kSpan / 64;  // left tiles of a span: 16 rows of 64 numbers

// The places of activations with a scale for `sub` values in right tiles: a result tile holds two groups.
template <int sub>
struct FewShape {
  static constexpr int groups = kSpan / sub, results = groups / 2;
  static constexpr int in_chunk = 64 / sub;  // groups in a left tile
  static constexpr int chunk_of(int result) { return 2 * result / in_chunk; }
};

// Activations of a span.
template <int sub>
struct alignas(64) FewColumns {
  int8_t tiles[FewShape<sub>::results][1024];
  float scales[FewShape<sub>::results][16];  // of the group and column of each lane
  float sums[FewShape<sub>::results][16];    // scale times sum
};

template <int sub>
inline void pack_few(const Activation* x, size_t x_stride, size_t columns, FewColumns<sub>& out) {
  using S = FewShape<sub>;
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  for (int g = 0; g < S::groups; ++g) {
    for (size_t c = 0; c < columns; ++c) {
      const Activation& a = x[c * x_stride];
      const size_t lane = static_cast<size_t>(g % 2 * kFewColumns) + c;
      out.scales[g / 2][lane] = a.d16[g * sub / 16];
      out.sums[g / 2][lane] = sub == 16 ? a.s16[g] : a.s32[g];
      int8_t* tile = out.tiles[g / 2] + g % S::in_chunk * (sub / 4) * 64 + lane * 4;
      for (int d = 0; d < sub / 4; ++d) std::memcpy(tile + d * 64, a.q + g * sub + 4 * d, 4);
    }
  }
}

template <class F>
struct Few {
  using P = Span<F>;
  using C = typename P::C;
  static constexpr int sub = Shape<F>::sub;
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
    }(std::make_integer_sequence<int, kFewChunks>{});
  }
  // The factors of the groups of result tile t, for each lane.
  template <int t, bool is_offset>
  static FEWBIT_INLINE __m512 of_lanes(const float* factors) {
    constexpr auto lanes = [] {
      std::array<int, 16> out{};
      for (int l = 0; l < 16; ++l) out[l] = C::slot(2 * t + l / kFewColumns, is_offset) % 16;
      return out;
    }();
    constexpr int vector = C::slot(2 * t, is_offset) / 16;
    return Isa::template spread<lanes>(_mm512_load_ps(factors + 16 * vector));
  }
  // Adds the scaled sums of one row.
  static FEWBIT_INLINE __m512 scale(const int32_t* sums, const float* factors, const FewColumns<sub>& x, __m512 acc) {
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
    }(std::make_integer_sequence<int, FewShape<sub>::results>{});
    return acc;
  }
};

// What a thread needs beside its stack. What is stored and what is loaded for the same row must not lie a multiple of
// 4096 bytes apart: the core would take the one for the other, and wait. Hence the gaps.
template <class F>
struct alignas(4096) FewScratch {
  using S = FewShape<Few<F>::sub>;
  uint8_t codes[2][kFewChunks][1024];
  uint8_t gap[512];
  int32_t sums[2][S::results][256];
  float acc[kFewRows][16];
  struct Factors {
    float of_row[kFewRows][Few<F>::C::vectors * 16];
    uint8_t gap[1408];
  } factors[3];
};

// Product p of a span. Its tile is zero: it is new, or the product before the last one was stored.
template <class F>
FEWBIT_INLINE void few_product(const uint8_t (*codes)[1024], const FewColumns<Few<F>::sub>& x, int p) {
  _tile_loadd(4, codes[FewShape<Few<F>::sub>::chunk_of(p)], 64);
  _tile_loadd(6, x.tiles[p], 64);
  if constexpr (Few<F>::is_signed) {
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

// Brings what a row holds about 1 KiB later to the second-level cache; after the row's end comes the one 16 below.
template <class F>
FEWBIT_INLINE void ask_few(const uint8_t* row, size_t span, size_t spans, const Layout& at) {
  constexpr size_t bytes = Shape<F>::span_bytes(), ahead = 1024 / bytes;
  const size_t to = span + ahead;
  const uint8_t* p = row + (to < spans ? to * bytes : kFewRows * at.row_bytes + (to - spans) * bytes);
  for (size_t c = 0; c < bytes; c += 64) __builtin_prefetch(p + c, 0, 2);
}

template <class F>
void few_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* packed, size_t columns, float* y,
              size_t y_stride, void* scratch) {
  using K = Few<F>;
  const TileUse in_use;
  static_assert(sizeof(FewScratch<F>) <= kFewScratch);
  auto& own = *static_cast<FewScratch<F>*>(scratch);
  const auto* x = static_cast<const FewColumns<K::sub>*>(packed);
  const size_t spans = (k + kSpan - 1) / kSpan;
  constexpr int products = FewShape<K::sub>::results;
  for (size_t first = 0; first < rows; first += kFewRows) {
    const size_t count = rows - first < kFewRows ? rows - first : kFewRows;
    for (auto& row : own.acc) _mm512_store_ps(row, _mm512_setzero_ps());
    for (size_t s = 0; s < spans + 2; ++s) {  // decodes span s, multiplies s - 1, scales s - 2
      int done = 0;
      for (size_t r = 0; r < kFewRows; ++r) {
        if (s < spans && r < count) {
          const uint8_t* row = w + (first + r) * at.row_bytes;
          ask_few<F>(row, s, spans, at);
          with_span<F>(row, s, k, at, [&](const Spot& spot) FEWBIT_LAMBDA_INLINE {
            K::decode(spot, own.codes[s % 2][0] + r * 64, own.factors[s % 3].of_row[r]);
          });
        }
        if (s > 0 && s <= spans) {  // a product, and the result of the one before, which is there by now
          const int due = static_cast<int>((r + 1) * (products + 1) / kFewRows);
          for (; done < due; ++done) {
            if (done > 0) store_product(done - 1, own.sums[(s - 1) % 2][done - 1]);
            if (done < products) few_product<F>(own.codes[(s - 1) % 2], x[s - 1], done);
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
        y[c * y_stride + first + r] = own.acc[r][c] + own.acc[r][c + kFewColumns];
      }
    }
  }
}
