// K and V of a page in the registers of a warp, as fragments of mma.m16n8k16.
//
// A lane is (n = lane / 4, c = lane % 4). It loads 8 dims of token 8 (n / 2) + 2 t + n % 2 for tile t of 8 tokens, and
// tokens 8 c to 8 c + 7 of a dim of V: then weights of tile t, transposed, are those of tokens 8 c + 2 t and the next,
// where the second product wants them. The order of dims within a block of 32 is that of the loads, in q too.
#pragma once
#include "fragments.h"
#include "kv_pages.h"

namespace fewbit {

__device__ __forceinline__ uint32_t transposed(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
__device__ __forceinline__ uint32_t bf16_pair_to_f16(uint32_t w) {
  return pack_half2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}
// Codes as f16, a byte each below the exponent of 2^10: what they are more than the values.
template <class F>
constexpr int zero_of() {
  if constexpr (is_quantized<F>)
    return 1024 + (F::codes.is_signed ? 128 : F::codes.zero);
  else
    return 0;
}

template <class F>
__device__ __forceinline__ void codes_to_f16(uint32_t w, int nibble, uint32_t& lo, uint32_t& hi) {
  if constexpr (is_real<F>(Real::f8_e4m3)) {
    f8_e4m3_to_f16(w, lo, hi);
  } else {
    const uint32_t bytes = values_of_code<F>() == 1 ? w ^ 0x80808080u : w >> 4 * nibble & 0x0f0f0f0fu;
    lo = __byte_perm(bytes, 0x64646464u, 0x4140);
    hi = __byte_perm(bytes, 0x64646464u, 0x4342);
  }
}

template <int words>
__device__ __forceinline__ void load_words(const uint8_t* p, uint32_t* out) {
  if constexpr (words == 4) {
    const uint4 v = load_16(p);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else if constexpr (words == 2) {
    const uint2 v = load_8(p);
    out[0] = v.x, out[1] = v.y;
  } else {
    out[0] = load_4(p);
  }
}

// A lane's part of 8 tokens of K.
template <class F, int D>
struct KeyTile {
  static constexpr int blocks = D / 32, bytes = row_codes_bytes<F>(32);  // of a block
  static constexpr int words = bytes / 16, zero = zero_of<F>();
  uint32_t code[blocks][words];
  uint32_t scale[is_quantized<F> ? (blocks + 1) / 2 : 1];  // two blocks a word

  // `codes` and `scales` of the lane's token: in a page, or the row's own in shared memory.
  __device__ __forceinline__ void load(const uint8_t* page, int token, int c) {
#pragma unroll
    for (int j = 0; j < blocks; ++j)
      load_words<words>(page + token * row_codes_bytes<F>(D) + j * bytes + c * (bytes / 4), code[j]);
    if constexpr (is_quantized<F>) {
      const uint8_t* p = page + scale_at<F, false>(token, 0, D);
      if constexpr (blocks % 4 == 0) {
#pragma unroll
        for (int j = 0; j < blocks / 4; ++j) load_words<2>(p + 8 * j, scale + 2 * j);
      } else if constexpr (blocks % 2 == 0) {
#pragma unroll
        for (int j = 0; j < blocks / 2; ++j) scale[j] = load_4(p + 4 * j);
      } else {
#pragma unroll
        for (int j = 0; j < blocks; ++j) {
          const uint32_t half = load_2(p + 2 * j);
          scale[j / 2] = j % 2 ? scale[j / 2] | half << 16 : half;
        }
      }
    }
  }
  __device__ __forceinline__ void take(const uint8_t* row, int c) {
#pragma unroll
    for (int j = 0; j < blocks; ++j)
#pragma unroll
      for (int w = 0; w < words; ++w)
        code[j][w] = *reinterpret_cast<const uint32_t*>(row + j * bytes + c * (bytes / 4) + 4 * w);
    if constexpr (is_quantized<F>) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(row + row_codes_bytes<F>(D));
#pragma unroll
      for (int j = 0; j < blocks; ++j)
        scale[j / 2] = j % 2 ? scale[j / 2] | static_cast<uint32_t>(from[j]) << 16 : from[j];
    }
  }
  __device__ __forceinline__ float scale_of(int j) const { return half_bits(scale[j / 2] >> 16 * (j % 2) & 0xffffu); }
  // Four dims of the lane: `step` 0 or 1 of block j, with the zero.
  __device__ __forceinline__ void decode(int j, int step, uint32_t& lo, uint32_t& hi) const {
    if constexpr (code_bytes<F>() == 1)
      codes_to_f16<F>(code[j][values_of_code<F>() == 2 ? 0 : step], step, lo, hi);
    else if constexpr (is_real<F>(Real::bf16))
      lo = bf16_pair_to_f16(code[j][2 * step]), hi = bf16_pair_to_f16(code[j][2 * step + 1]);
    else
      lo = code[j][2 * step], hi = code[j][2 * step + 1];
  }
};
// Which dim of a block that is.
template <class F>
__device__ __forceinline__ int dim_of(int c, int step) {
  return values_of_code<F>() == 2 ? 16 * step + 4 * c : 8 * c + 4 * step;
}

// A lane's part of 32 dims of V: tokens 8 c to 8 c + 7 of dims n, n + 8, n + 16, n + 24 (4 bits: two in a byte).
template <class F, int D>
struct ValueBlock {
  static constexpr int rows = values_of_code<F>() == 2 ? 2 : 4, bytes = code_bytes<F>(), words = 2 * bytes;
  uint32_t code[rows][words];
  uint32_t scale[is_quantized<F> ? 4 : 1];

  __device__ __forceinline__ void load(const uint8_t* page, int b, int n, int c) {
#pragma unroll
    for (int u = 0; u < rows; ++u)
      load_words<words>(page + (((b * rows + u) * 8 + n) * kPageTokens + 8 * c) * bytes, code[u]);
    if constexpr (is_quantized<F>) load_words<4>(page + scale_at<F, true>(8 * c, b, D), scale);
  }
  // Tokens that are not seen may hold anything; 0 times that must be 0. A mask for each pair of tokens.
  __device__ __forceinline__ void mask(const uint32_t (&keep)[4]) {
    constexpr bool is_byte = bytes == 1 && !is_quantized<F>;  // four tokens a word
#pragma unroll
    for (int i = 0; i < (is_byte ? 2 : 4); ++i) {
      if constexpr (is_quantized<F>) {
        scale[i] &= keep[i];
      } else {
        const uint32_t own = is_byte ? __byte_perm(keep[2 * i % 4], keep[2 * i % 4 + 1], 0x6420) : keep[i];
#pragma unroll
        for (int u = 0; u < rows; ++u) code[u][i] &= own;
      }
    }
  }
  // The row's own token, at `place` of the lane's eight. Masks, not branches: registers cannot be indexed.
  __device__ __forceinline__ void take(const uint8_t* row, int b, int n, int place) {
    const int word = place * bytes / 4, shift = place * bytes % 4 * 8;
    const uint32_t field = (bytes == 1 ? 0xffu : 0xffffu) << shift;
#pragma unroll
    for (int u = 0; u < rows; ++u) {
      const int at = (b * rows + u) * 8 + n;
      const uint32_t v = bytes == 1 ? row[at] : reinterpret_cast<const uint16_t*>(row)[at];
#pragma unroll
      for (int w = 0; w < words; ++w) {
        const uint32_t mask = w == word ? field : 0;
        code[u][w] = (code[u][w] & ~mask) | (v << shift & mask);
      }
    }
    if constexpr (is_quantized<F>) {
      const uint32_t half = reinterpret_cast<const uint16_t*>(row + row_codes_bytes<F>(D))[b] * 0x10001u;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t mask = i != place / 2 ? 0 : place % 2 ? 0xffff0000u : 0xffffu;
        scale[i] = (scale[i] & ~mask) | (half & mask);
      }
    }
  }
  // Dims 8 u + n, tokens of tiles 2 i and 2 i + 1.
  __device__ __forceinline__ void decode(int u, int i, uint32_t& lo, uint32_t& hi) const {
    constexpr uint32_t zero = (0x6400u + zero_of<F>() % 1024) * 0x10001u;
    if constexpr (bytes == 1) {
      codes_to_f16<F>(code[u % rows][i], u / rows, lo, hi);
      if constexpr (is_quantized<F>) lo = subtract2(lo, zero), hi = subtract2(hi, zero);
    } else if constexpr (is_real<F>(Real::bf16))
      lo = bf16_pair_to_f16(code[u][2 * i]), hi = bf16_pair_to_f16(code[u][2 * i + 1]);
    else
      lo = code[u][2 * i], hi = code[u][2 * i + 1];
  }
};

}  // namespace fewbit
