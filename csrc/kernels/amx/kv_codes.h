// Keys and values of slabs (kernels/kv_tiled.h) as int8 tiles, 32 tokens at a time. Codes of 8 bits stay where they
// are.

template <class F>
FEWBIT_INLINE __m512i integers(__m512i codes) {
  if constexpr (F::codebook.used > 0)
    return Isa::lookup<F::codebook, 0>(codes);
  else if constexpr (F::codes.zero != 0)
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(F::codes.zero)));
  else
    return codes;
}
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
    low = integers<F>(_mm512_and_si512(v, mask));
    high = integers<F>(_mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
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
  key_tiles<F>(step.keys.data, step.keys.tokens, step.keys.dim, code_scratch());
}
template <class F>
void integer_values(const IntegerStep& step) {
  value_tiles<F>(step.values.data, step.values.tokens, step.values.dim, code_scratch());
}
