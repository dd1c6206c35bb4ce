// Products on matrix tiles (AMX, bf16): many columns at once. Weights are decoded into the tiles of the left operand;
// the activations, packed once, are the right one. Inside every 64 values the even ones come first, then the odd ones,
// on both sides: codes are bytes, and so none of them has to cross a lane to become a 16-bit number.

constexpr int kTileRows = 16, kTileValues = 32;         // of a left tile; a right tile holds 16 columns of 32 values
constexpr int kTileElements = kTileRows * kTileValues;  // 1 KiB of bf16
constexpr int kStrip = 2 * kTileRows;                   // rows that are multiplied together
constexpr int kSteps = kBlockK / kTileValues;           // tiles along a k-block
constexpr int kStripElements = kStrip * kBlockK;
constexpr size_t kPanelRows = 256;                  // whose sums are in the second-level cache
constexpr size_t kPanelKBlocks = 3;                 // rows of no more are taken whole
constexpr size_t kSkinnyScratch = size_t{1} << 18;  // bytes, at most, that kernels/amx/skinny.h needs

template <class F>
struct ToTiles {
  using P = KBlock<F>;
  using S = Shape<F>;
  using C = typename P::C;
  static constexpr int groups = P::groups;
  // Codes of few bits: all values of a group as bf16 in a register, and a permutation picks among them.
  static constexpr bool by_table = [] {
    if constexpr (F::kind == Kind::planes)
      return F::codes.bits() <= 4 && S::group_size == 32;
    else
      return false;
  }();
  static constexpr int zero = by_table ? 0 : P::code.zero;
  // Codes of more bits: the byte of a code becomes part of a float, the number `base` + code. Below 128 it stands so
  // high that it is the whole mantissa.
  static constexpr bool low = [] {
    if constexpr (F::kind == Kind::planes)
      return F::codes.bits() < 8 && F::codebook.used == 0;
    else
      return false;
  }();
  static constexpr float base = by_table ? 0 : low ? 128 : 32768;
  // What is too much is taken off with the shift, after the product, if nothing is lost there: with few bits of code,
  // or of scale. To spread two shifts over a vector takes longer than to subtract.
  static constexpr bool short_scale = F::scale.real == Real::f16 && F::scale.ints.used == 0 && zero % 128 == 0;
  static constexpr bool loses = !low && (C::offset || !short_scale);
  static constexpr bool subtracts = !by_table && (loses || (S::group_size == 16 && !C::offset));
  static_assert(!subtracts || zero == 0 || P::code.times == 1);
  static constexpr bool shifts = C::offset || (!by_table && !subtracts);  // a value is code * scale + shift

  struct Factors {
    alignas(64) float scale[16], shift[16];  // of each group
  };

  static constexpr std::array<int, 16> lanes_of(bool is_offset) {
    std::array<int, 16> out{};
    for (int g = 0; g < 16; ++g) out[g] = C::slot(g % groups, is_offset) % Isa::L;
    return out;
  }
  static FEWBIT_INLINE Factors factors(const Spot& s) {
    __m512 f[C::vectors];
    P::factors(s, f);
    __m512 scale = C::paired ? Isa::template spread<lanes_of(false)>(f[0]) : f[0];
    Factors out;
    __m512 shift = _mm512_mul_ps(scale, _mm512_set1_ps(static_cast<float>(subtracts ? 0 : -zero)));
    if constexpr (C::offset) {
      const __m512 offset = C::paired ? Isa::template spread<lanes_of(true)>(f[0]) : f[C::vectors - 1];
      shift = _mm512_fmadd_ps(offset, _mm512_set1_ps(static_cast<float>(F::offset_sign)), shift);
    }
    if constexpr (!by_table) {
      if constexpr (P::code.times != 1) scale = _mm512_mul_ps(scale, _mm512_set1_ps(static_cast<float>(P::code.times)));
      if constexpr (!subtracts) shift = _mm512_fnmadd_ps(scale, _mm512_set1_ps(base), shift);
    }
    if constexpr (shifts) _mm512_store_ps(out.shift, shift);
    _mm512_store_ps(out.scale, scale);
    return out;
  }

  // The numbers that the codes 0 to 15 stand for.
  static FEWBIT_INLINE __m512 entries() {
    alignas(64) static constexpr auto numbers = [] {
      std::array<float, 16> out{};
      if constexpr (by_table) {
        for (int i = 0; i < 16; ++i) {
          out[i] =
              static_cast<float>(F::codebook.used > 0 ? F::codebook.values[i] : F::codes.times * i - F::codes.zero);
        }
      }
      return out;
    }();
    return _mm512_load_ps(numbers.data());
  }
  static FEWBIT_INLINE __m512 table_values(const Factors& f, int g) {
    const __m512 scale = _mm512_set1_ps(f.scale[g]);
    if constexpr (shifts) return _mm512_fmadd_ps(entries(), scale, _mm512_set1_ps(f.shift[g]));
    return _mm512_mul_ps(entries(), scale);
  }
  static FEWBIT_INLINE __m512i table(const Factors& f, int g) {  // of groups g and g + 1
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(table_values(f, g + 1), table_values(f, g)));
  }
  // The factor of each value of half `h` of chunk j, where even and odd ones lie apart.
  template <int j, int h>
  static FEWBIT_INLINE __m512 of_half(const float* v) {
    constexpr int g = (j * Isa::W + h * Isa::W / 2) / S::group_size;
    if constexpr (S::group_size == 32) return _mm512_set1_ps(v[g]);
    const __m512i two = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(two, _mm512_castps128_ps512(_mm_castsi128_ps(_mm_loadu_si64(v + g))));
  }
  // The even or the odd values of half `h` of chunk j.
  template <int j, int h, int odd>
  static FEWBIT_INLINE __m512 values(__m512i codes, const Factors& f) {
    constexpr int place = low ? 2 : 1;  // of the byte in a float
    alignas(64) static constexpr auto order = [] {
      std::array<uint8_t, 64> o{};
      for (int i = 0; i < 16; ++i) o[4 * i + place] = static_cast<uint8_t>(32 * h + 2 * i + odd);
      return o;
    }();
    const __m512i bases = _mm512_castps_si512(_mm512_set1_ps(base)), index = _mm512_load_si512(order.data());
    const __m512i v = _mm512_mask_permutexvar_epi8(bases, 0x1111111111111111 << place, index, codes);
    const __m512 number =
        subtracts ? _mm512_sub_ps(_mm512_castsi512_ps(v), _mm512_set1_ps(base + zero)) : _mm512_castsi512_ps(v);
    const __m512 scale = of_half<j, h>(f.scale);
    if constexpr (shifts) return _mm512_fmadd_ps(number, scale, of_half<j, h>(f.shift));
    return _mm512_mul_ps(number, scale);
  }
  template <int j, int odd>
  static FEWBIT_INLINE __m512i halves(__m512i codes, const Factors& f) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(values<j, 1, odd>(codes, f), values<j, 0, odd>(codes, f)));
  }
  // 64 codes to a row of two tiles.
  template <int j>
  static FEWBIT_INLINE void chunk(const uint8_t* codes, const Factors& f, uint16_t* out) {
    __m512i even, odd;
    if constexpr (by_table) {
      const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi8(16), 1);
      const __m512i q = _mm512_or_si512(P::template stored<j, false>(codes), second), t = table(f, 2 * j);
      even = _mm512_permutexvar_epi16(q, t);
      odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(q, 8), t);
    } else {
      const __m512i q = P::template codes<j>(codes);
      even = halves<j, 0>(q, f);
      odd = halves<j, 1>(q, f);
    }
    _mm512_store_si512(out + 4 * j * kTileElements, even);
    _mm512_store_si512(out + (4 * j + 2) * kTileElements, odd);
  }
  // A k-block of one row; `out` is its place in the first of the strip's tiles: step 0 rows 0-15, rows 16-31, step 1,
  // ...
  static FEWBIT_INLINE void k_block(const Spot& s, uint16_t* out) {
    const Factors f = factors(s);
    [&]<int... j>(std::integer_sequence<int, j...>)
        FEWBIT_LAMBDA_INLINE { (chunk<j>(s.p, f, out), ...); }(std::make_integer_sequence<int, P::chunks>{});
  }
};

// Numbers of 16 bits: f16 is rounded, bf16 only put in order.
template <class F>
struct RealsToTiles {
  static constexpr int k_block_bytes = kBlockK * F::bytes;

  static FEWBIT_INLINE void chunk(const uint8_t* p, uint16_t* even, uint16_t* odd) {  // 64 of them
    if constexpr (F::real == Real::bf16) {
      alignas(64) static constexpr auto order = [] {
        std::array<uint16_t, 32> out{};
        for (int i = 0; i < 32; ++i) out[i] = static_cast<uint16_t>(2 * i);
        return out;
      }();
      const __m512i evens = _mm512_load_si512(order.data()), odds = _mm512_add_epi16(evens, _mm512_set1_epi16(1));
      const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
      _mm512_store_si512(even, _mm512_permutex2var_epi16(a, evens, b));
      _mm512_store_si512(odd, _mm512_permutex2var_epi16(a, odds, b));
    } else {
      const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
      __m512 v[4];
      for (int i = 0; i < 4; ++i) v[i] = Own<F>::type::template reals_at<F::real>(p + 32 * i);
      const auto pick = [&](__m512i which, uint16_t* out) FEWBIT_LAMBDA_INLINE {
        const auto pairs =
            _mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(v[2], which, v[3]), _mm512_permutex2var_ps(v[0], which, v[1]));
        _mm512_store_si512(out, reinterpret_cast<__m512i>(pairs));
      };
      pick(evens, even);
      pick(odds, odd);
    }
  }
  static FEWBIT_INLINE void k_block(const uint8_t* p, uint16_t* out) {
    for (int j = 0; j < kBlockK / 64; ++j) {
      chunk(p + 64 * j * F::bytes, out + 4 * j * kTileElements, out + (4 * j + 2) * kTileElements);
    }
  }
};

template <class F>
constexpr bool to_tiles() {  // whether there is a way
  if constexpr (F::kind == Kind::scalar)
    return F::real == Real::f16 || F::real == Real::bf16;
  else
    return true;
}
template <class F>
constexpr int tile_k_block_bytes() {
  if constexpr (F::kind == Kind::scalar)
    return RealsToTiles<F>::k_block_bytes;
  else
    return Shape<F>::k_block_bytes();
}

// A k-block of a row, padded with zeros, to its place in the tiles of a strip.
template <class F>
FEWBIT_INLINE void k_block_to_tiles(const uint8_t* row, size_t k_block, size_t k, const Layout& at, uint16_t* out) {
  if constexpr (F::kind == Kind::scalar) {
    const uint8_t* p = row + k_block * tile_k_block_bytes<F>();
    if ((k_block + 1) * kBlockK <= k) return RealsToTiles<F>::k_block(p, out);
    alignas(64) uint8_t copy[RealsToTiles<F>::k_block_bytes] = {};
    std::memcpy(copy, p, (k - k_block * kBlockK) * F::bytes);
    RealsToTiles<F>::k_block(copy, out);
  } else {
    with_k_block<F>(row, k_block, k, at, [&](const Spot& s) FEWBIT_LAMBDA_INLINE { ToTiles<F>::k_block(s, out); });
  }
}

// A k-block of 16 interleaved rows, laid one row after the other.
template <class F>
struct RowsApart {
  using S = Shape<F>;
  static constexpr size_t bytes = S::k_block_bytes(), panel_bytes = 16 * bytes;
  static constexpr size_t most =
      bytes + (S::row ? 2 * kBlockK / 32 * sizeof(float) : 0);  // with its scales and offsets
  static constexpr size_t stride = (most + 127) / 64 * 64;
  alignas(64) uint8_t rows[16][stride];
  Layout at;  // row placement: of a row that is one k-block

  // `set`: where the rows begin.
  FEWBIT_INLINE void fill(const uint8_t* set, size_t k_block, const Layout& of) {
    from_interleaved(set + k_block * panel_bytes, bytes, rows[0], stride);
    if constexpr (S::row) {
      const size_t first = of.shift >= 0 ? k_block * kBlockK >> of.shift : 0;
      const size_t group = of.shift >= 0 && of.group < kBlockK ? of.group : kBlockK, groups = kBlockK / group;
      at = layout<F>(kBlockK, group);
      for (int f = 0; f < 1 + F::offset.present; ++f) {
        from_interleaved(set + 16 * of.field_at[f] + 64 * first, groups * sizeof(float), rows[0] + at.field_at[f],
                         stride);
      }
    }
  }
  FEWBIT_INLINE void to_tiles(size_t row, uint16_t* out) const {
    ToTiles<F>::k_block(Spot{rows[row], rows[row], &at, 0, S::row ? kBlockK / at.group - 1 : 0}, out);
  }
};
template <class F>
constexpr bool reads_interleaved() {
  if constexpr (F::kind == Kind::planes)
    return Interleaved<F>::can();
  else
    return false;
}
