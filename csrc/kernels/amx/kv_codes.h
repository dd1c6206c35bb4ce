// Keys and values that are small integers times a scale for every 32, as int8 tiles: from rows, or from slabs that lie
// as tiles want them (kernels/kv_tiled.h).

template <class F>
struct KvCodes {
  using B = KvBlock<F>;
  static constexpr bool can() {
    if constexpr (B::can() && !B::plain)
      return !F::offset.present && F::scale.real == Real::f16 && F::codes.times == 1;
    else
      return false;
  }
  // Piece k of the codes of two blocks.
  template <int k>
  static FEWBIT_INLINE __m512i piece(const uint8_t* p, const uint8_t* q) {
    constexpr Run16 low = B::run(k, 0), high = B::run(k, 1);
    if constexpr (low.in_bits) {
      const auto bits = [](const uint8_t* from) FEWBIT_LAMBDA_INLINE {
        return uint64_t{load<uint16_t>(from + low.at)} | uint64_t{load<uint16_t>(from + high.at)} << 16;
      };
      return _mm512_maskz_set1_epi8(bits(p) | bits(q) << 32, static_cast<char>(1 << low.dst));
    } else {
      static_assert(low.at == high.at || low.at + 16 == high.at);
      __m512i v;
      if constexpr (low.at == high.at)
        v = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(Isa::load16(p + low.at)), 0xFF00,
                                        Isa::load16(q + low.at));
      else
        v = _mm512_inserti64x4(_mm512_castsi256_si512(Isa::load32(p + low.at)), Isa::load32(q + low.at), 1);
      if constexpr (low.bits == 8) return v;
      constexpr int a = (low.shift - low.dst) & 31, b = (high.shift - high.dst) & 31;
      v = _mm512_rorv_epi32(v, _mm512_setr_epi32(a, a, a, a, b, b, b, b, a, a, a, a, b, b, b, b));
      return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(((1 << low.bits) - 1) << low.dst)));
    }
  }
  static FEWBIT_INLINE __m512i integers(__m512i codes) {
    if constexpr (F::codebook.used > 0)
      return Isa::lookup<F::codebook, 0>(codes);
    else if constexpr (F::codes.zero != 0)
      return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(F::codes.zero)));
    else
      return codes;
  }
  static FEWBIT_INLINE __m512i two_blocks(const uint8_t* p, const uint8_t* q) {
    __m512i v = piece<0>(p, q);
    if constexpr (F::codes.pieces(0) > 1) v = Isa::either(v, piece<1>(p, q));
    return integers(v);
  }
  // The scales of some blocks of up to 32 rows, [block][row]; 0 past the last row.
  static FEWBIT_INLINE void scales(const uint8_t* x, size_t rows, size_t row_bytes, size_t blocks,
                                   float (*out)[kKvTokens]) {
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(static_cast<int>(row_bytes)));
    for (size_t first = 0; first < kKvTokens; first += 16) {
      const size_t left = rows > first ? rows - first : 0;
      const auto known = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
      const uint8_t* p = x + first * row_bytes + F::scale.at;
      for (size_t b = 0; b < blocks; ++b) {
        const __m512i v = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), known, at, p + b * F::bytes, 1);
        _mm512_store_ps(out[b] + first, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)));
      }
    }
  }
};

// Keys as right tiles: for every two blocks, 16 tokens and then 16 more. What lies past the last token is anything.
template <class F>
void key_codes(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) {
  const size_t blocks = (dim + 31) / 32;
  for (size_t first = 0; first < tokens; first += 16) {
    for (size_t b = 0; b < blocks; b += 2) {
      __m512i rows[16];
      keep_tiles_awake();
      for (size_t i = 0; i < 16; ++i) {
        const uint8_t* p = x + (first + i < tokens ? first + i : first) * row_bytes + b * F::bytes;
        rows[i] = KvCodes<F>::two_blocks(p, b + 1 < blocks ? p + F::bytes : p);
      }
      transpose16(rows);
      for (size_t i = 0; i < 16; ++i) _mm512_store_si512(own.keys[b / 2][first / 16] + 64 * i, rows[i]);
    }
  }
  own.keys_at = own.keys[0][0];
  KvCodes<F>::scales(x, tokens, row_bytes, blocks, own.key_scales);
}

// 32 values of four tokens as a row of each of two right tiles: four tokens side by side.
template <class F>
FEWBIT_INLINE void four_tokens(const uint8_t* const* r, size_t at, int8_t* out) {
  using C = KvCodes<F>;
  if constexpr (KvBlock<F>::by_table) {  // two values in a byte: transposed before they are taken apart
    alignas(64) static constexpr auto order = [] {
      std::array<uint8_t, 64> o{};
      for (int i = 0; i < 64; ++i) o[i] = static_cast<uint8_t>(i / 4 + i % 4 * 16);
      return o;
    }();
    const size_t codes = at + KvBlock<F>::run(0, 0).at;
    __m512i v = _mm512_broadcast_i32x4(Isa::load16(r[0] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0x00F0, Isa::load16(r[1] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0x0F00, Isa::load16(r[2] + codes));
    v = _mm512_mask_broadcast_i32x4(v, 0xF000, Isa::load16(r[3] + codes));
    v = _mm512_permutexvar_epi8(_mm512_load_si512(order.data()), v);
    const __m512i low = _mm512_set1_epi8(15);
    _mm512_store_si512(out, C::integers(_mm512_and_si512(v, low)));
    _mm512_store_si512(out + 1024, C::integers(_mm512_and_si512(_mm512_srli_epi16(v, 4), low)));
  } else {
    alignas(64) static constexpr auto order = [] {
      std::array<uint8_t, 128> o{};
      for (int i = 0; i < 128; ++i) o[i] = static_cast<uint8_t>(i / 4 + i % 2 * 32);
      return o;
    }();
    constexpr __mmask64 last = 0xCCCCCCCCCCCCCCCC;
    const __m512i first_two = C::two_blocks(r[0] + at, r[1] + at), last_two = C::two_blocks(r[2] + at, r[3] + at);
    for (int h = 0; h < 2; ++h) {
      const __m512i index = _mm512_load_si512(order.data() + 64 * h);
      const __m512i v = _mm512_permutexvar_epi8(index, first_two);
      _mm512_store_si512(out + h * 1024, _mm512_mask_permutexvar_epi8(v, last, index, last_two));
    }
  }
}
// Values as right tiles, two blocks in one. Those past the last are anything: their weights are 0.
template <class F>
void value_codes(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) {
  const size_t blocks = (dim + 31) / 32;
  const auto row = [&](size_t t) { return x + (t < tokens ? t : 0) * row_bytes; };
  for (size_t t = 0; t < kKvTokens && t < tokens; t += 4) {
    if (t % 8 == 0) keep_tiles_awake();
    const uint8_t* r[4] = {row(t), row(t + 1), row(t + 2), row(t + 3)};
    const size_t place = row_of_token(t);
    for (size_t b = 0, at = 0; b < blocks; ++b, at += F::bytes) {
      four_tokens<F>(r, at, own.values[b / 2][0] + (b % 2 * 8 + place) * 64);
    }
  }
  own.values_at = own.values[0][0];
  KvCodes<F>::scales(x, tokens, row_bytes, blocks, own.value_scales);
}

// The same for 32 tokens that lie as tiles want them: see kv_tiled.h. Codes of 8 bits stay where they are.
template <class F>
FEWBIT_INLINE void tiled_scales(const uint8_t* slab, size_t tokens, size_t dim, float (*out)[kKvTokens]) {
  const uint32_t known = tokens >= 32 ? ~0u : (1u << tokens) - 1;
  const __m512 by = _mm512_set1_ps(KvTiled<F>::is_signed4 ? 0x1p-4f : 1);
  for (size_t b = 0; b < dim / 32; ++b) {
    for (size_t half = 0; half < 2; ++half) {
      const auto mask = static_cast<__mmask16>(known >> 16 * half);
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(slab + 64 * b + 32 * half));
      _mm512_store_ps(out[b] + 16 * half, _mm512_mul_ps(_mm512_maskz_cvtph_ps(mask, v), by));
    }
  }
}
// Signed codes of four bits stay in the first half of a byte: their scale is a 16th.
template <class F>
FEWBIT_INLINE void two_of_bytes(__m512i v, __m512i& low, __m512i& high) {
  if constexpr (KvTiled<F>::is_signed4) {
    const __m512i mask = _mm512_set1_epi8(-16);
    low = _mm512_and_si512(_mm512_slli_epi16(v, 4), mask);
    high = _mm512_and_si512(v, mask);
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    low = KvCodes<F>::integers(_mm512_and_si512(v, mask));
    high = KvCodes<F>::integers(_mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
  }
}
template <class F>
void key_tiles(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) {
  const uint8_t* from = slab + KvTiled<F>::codes_at(dim);
  const size_t halves = tokens > 16 ? 2 : 1;
  if constexpr (KvTiled<F>::per_byte == 1) {
    own.keys_at = reinterpret_cast<const int8_t*>(from);
  } else {
    own.keys_at = own.keys[0][0];
    const auto apart = [&](size_t i, size_t rows, size_t next) FEWBIT_LAMBDA_INLINE {
      for (size_t half = 0; half < halves; ++half) {
        int8_t* to = own.keys[i][half];
        for (size_t row = 0; row < rows; ++row) {
          __m512i low, high;
          two_of_bytes<F>(_mm512_loadu_si512(from + i * 1024 + (half * rows + row) * 64), low, high);
          _mm512_store_si512(to + row * 64, low);
          _mm512_store_si512(to + next + row * 64, high);
        }
      }
    };
    size_t i = 0;  // every 64 values
    for (; i + 1 < dim / 64; i += 2) apart(i, 16, 2048);
    if (i < dim / 64) apart(i, 8, 512);
  }
  tiled_scales<F>(slab, tokens, dim, own.key_scales);
}
template <class F>
void value_tiles(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) {
  if constexpr (KvTiled<F>::per_byte == 1) {
    own.values_at = reinterpret_cast<const int8_t*>(slab) + KvTiled<F>::codes_at(dim);
  } else {
    own.values_at = own.values[0][0];
    for (size_t i = 0; i < dim / 64; ++i) {
      for (size_t row = 0; row < 16; ++row) {
        if (first_token_of_row(row % 8) >= tokens) continue;
        __m512i low, high;
        two_of_bytes<F>(_mm512_loadu_si512(slab + KvTiled<F>::codes_at(dim) + i * 1024 + row * 64), low, high);
        _mm512_store_si512(own.values[i][0] + row * 64, low);
        _mm512_store_si512(own.values[i][1] + row * 64, high);
      }
    }
  }
  tiled_scales<F>(slab, tokens, dim, own.value_scales);
}

// Tokens of a slab as floats: for a few of them nothing else is decoded.
template <class F>
struct TiledFloats {
  using T = KvTiled<F>;
  const uint8_t* slab;
  size_t dim;

  FEWBIT_INLINE __m512 scale(size_t value, size_t token) const {
    const float d = _cvtsh_ss(load<uint16_t>(slab + T::scale_at(value / 32, token)));
    return _mm512_set1_ps(T::is_signed4 ? d * 0x1p-4f : d);
  }
  // Codes of `count` neighbouring values.
  FEWBIT_INLINE void put(__m512i codes, size_t value, size_t count, size_t token, float* out) const {
    alignas(64) int8_t bytes[64];
    _mm512_store_si512(bytes, codes);
    for (size_t i = 0; i < count; i += 16) {
      const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Isa::load16(bytes + i)));
      _mm512_storeu_ps(out + value + i, _mm512_mul_ps(v, scale(value + i, token)));
    }
  }
  FEWBIT_INLINE void key(size_t token, float* out) const {
    const __m512i rows = _mm512_setr_epi32(0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960);
    for (size_t byte = 0; byte < dim / T::per_byte; byte += 64) {
      const uint8_t* p = slab + T::codes_at(dim) + T::key_place(byte, token, dim);
      const size_t left = dim / T::per_byte - byte, all = left < 64 ? left : 64;
      const auto known = static_cast<__mmask16>((1u << all / 4) - 1);
      const __m512i v = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), known, rows, p, 1);
      if constexpr (T::per_byte == 1) {
        put(v, byte, all, token, out);
      } else {
        __m512i low, high;
        two_of_bytes<F>(v, low, high);
        put(low, 2 * byte, all, token, out);
        put(high, 2 * byte + all, all, token, out);
      }
    }
  }
  FEWBIT_INLINE void value(size_t token, float* out) const {
    const __m128i left = _mm_cvtsi32_si128(static_cast<int>(24 - token % 4 * 8));
    const auto own = [&](__m512i line, size_t d) FEWBIT_LAMBDA_INLINE {  // the byte of this token of every four
      const __m512 v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_sll_epi32(line, left), 24));
      _mm512_storeu_ps(out + d, _mm512_mul_ps(v, scale(d, token)));
    };
    const uint8_t* codes = slab + T::codes_at(dim);
    for (size_t b = 0; b < dim / 32; ++b) {
      __m512i low = _mm512_loadu_si512(codes + T::value_line(b, 0, token)), high;
      if constexpr (T::per_byte == 1)
        high = _mm512_loadu_si512(codes + T::value_line(b, 1, token));
      else
        two_of_bytes<F>(low, low, high);
      own(low, 32 * b);
      own(high, 32 * b + 16);
    }
  }
};
template <class F>
void tiled_floats(const uint8_t* slab, size_t tokens, size_t dim, bool is_value, float* out, size_t stride) {
  const TiledFloats<F> all{slab, dim};
  for (size_t t = 0; t < tokens; ++t, out += stride) is_value ? all.value(t, out) : all.key(t, out);
}

// What a format has to do in a step: its integers and scales to where the products look for them.
template <class F>
void integer_keys(const IntegerStep& step) {
  const KvBlockRows& x = step.keys;
  if constexpr (KvTiled<F>::can()) {
    if (x.tiled) return key_tiles<F>(x.data, x.tokens, x.dim, code_scratch());
  }
  key_codes<F>(x.data, x.tokens, x.row_bytes, x.dim, code_scratch());
}
template <class F>
void integer_values(const IntegerStep& step) {
  const KvBlockRows& x = step.values;
  if constexpr (KvTiled<F>::can()) {
    if (x.tiled) return value_tiles<F>(x.data, x.tokens, x.dim, code_scratch());
  }
  value_codes<F>(x.data, x.tokens, x.row_bytes, x.dim, code_scratch());
}
