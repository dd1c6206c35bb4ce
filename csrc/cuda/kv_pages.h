// Where K and V lie in a page of 32 tokens of one head. All that reads or writes pages asks here; ops/cuda/pages.py
// does the same in NumPy.
//
//   K: codes [token][dim], then f16 scales [token][block of 32 dims]
//   V: codes [dim][token], then f16 scales [block][token]: transposed, as mma wants its second operand
//
// Codes are elements of scalar formats, or bytes of formats whose blocks are 32 codes of 8 or 4 bits with an f16 scale:
// one value of 8 bits, two of 4 as in files, dims i and i + 16 of a block. So no two tokens share a byte, in V either:
// [block][16][token]. Quantized dims are padded to whole blocks.
#pragma once
#include "encode.h"

namespace fewbit {

constexpr int kPageTokens = 32, kKvBlock = 32;

template <class F>
constexpr bool is_quantized = F::kind == Kind::planes;

template <class F>
constexpr bool is_real(Real r) {
  if constexpr (is_quantized<F>)
    return false;
  else
    return F::real == r;
}
// Values in the byte of a code.
template <class F>
constexpr int values_of_code() {
  if constexpr (is_quantized<F>) {
    constexpr Plane codes = F::codes.planes[0];
    static_assert(F::block == kKvBlock && F::codes.used == 1 && F::codebook.used == 0 && F::codes.times == 1);
    static_assert(F::scale.real == Real::f16 && F::scale.ints.used == 0 && !F::offset.present);
    static_assert(F::codes.is_signed ? codes.bits == 8 : codes.bits == 4);
    static_assert(codes.bits == 8 || (codes.bit(1) - codes.start == 8 && codes.bit(16) - codes.start == 4));
    return 8 / codes.bits;
  } else {
    static_assert(F::rule == Rule::cast);
    return 1;
  }
}
template <class F>
constexpr int code_bytes() {
  if constexpr (is_quantized<F>)
    return 1;
  else
    return real_bytes(F::real);
}
template <class F>
constexpr int scale_blocks(int dims) {
  return is_quantized<F> ? (dims + kKvBlock - 1) / kKvBlock : 0;
}
template <class F>
constexpr int codes_of_block = kKvBlock / values_of_code<F>();
// Codes of a token.
template <class F>
constexpr int codes_of(int dims) {
  return is_quantized<F> ? scale_blocks<F>(dims) * codes_of_block<F> : dims;
}
template <class F>
constexpr int row_codes_bytes(int dims) {
  return codes_of<F>(dims) * code_bytes<F>();
}
template <class F>
constexpr int row_bytes(int dims) {
  return row_codes_bytes<F>(dims) + 2 * scale_blocks<F>(dims);
}
template <class F>
constexpr size_t page_bytes(int dims) {
  return static_cast<size_t>(kPageTokens) * row_bytes<F>(dims);
}
// The code that holds a dim, and what that is in it.
template <class F>
constexpr int code_index(int dim) {
  return values_of_code<F>() == 2 ? dim / kKvBlock * 16 + dim % 16 : dim;
}
template <class F>
__device__ __forceinline__ float code_value(uint32_t code, int dim) {
  if constexpr (F::codes.is_signed)
    return static_cast<float>(static_cast<int8_t>(code));
  else
    return static_cast<float>(static_cast<int>(code >> (dim % kKvBlock / 16 * 4) & 15) - F::codes.zero);
}

// Bytes from the start of a head's page.
template <class F, bool is_value>
__device__ __forceinline__ int code_at(int token, int code, int dims) {
  return code_bytes<F>() * (is_value ? code * kPageTokens + token : token * codes_of<F>(dims) + code);
}
template <class F, bool is_value>
__device__ __forceinline__ int scale_at(int token, int block, int dims) {
  const int at = is_value ? block * kPageTokens + token : token * scale_blocks<F>(dims) + block;
  return kPageTokens * row_codes_bytes<F>(dims) + 2 * at;
}

// A head's page.
template <class F>
__device__ __forceinline__ size_t page_at(int page, int head, int kv_heads, int dims) {
  return (static_cast<size_t>(page) * kv_heads + head) * page_bytes<F>(dims);
}

// One value. Plain loads: what this kernel wrote before a barrier is seen.
template <class F, bool is_value>
__device__ __forceinline__ float read_kv(const uint8_t* page, int token, int dim, int dims) {
  const uint8_t* p = page + code_at<F, is_value>(token, code_index<F>(dim), dims);
  if constexpr (is_quantized<F>)
    return half_bits(*reinterpret_cast<const uint16_t*>(page + scale_at<F, is_value>(token, dim / kKvBlock, dims))) *
           code_value<F>(*p, dim);
  else
    return get<F::real>(p, 0);
}

// A value of a block of 32, one in each lane, as it is stored: its code (of 4 bits: in lanes below 16) and the scale.
struct PackedKv {
  uint32_t code = 0;
  uint16_t scale = 0;
};

// A scale that overflows f16 becomes its largest: values that are too large become the largest of the format.
template <class F>
__device__ __forceinline__ PackedKv pack_kv(float v, int lane) {
  if constexpr (is_real<F>(Real::f32)) return {__float_as_uint(v), 0};
  if constexpr (is_real<F>(Real::f16)) return {to_finite_half(v), 0};
  if constexpr (is_real<F>(Real::bf16)) return {f32_to_bf16(v), 0};
  if constexpr (is_real<F>(Real::f8_e4m3)) return {f32_to_f8_e4m3(v), 0};
  if constexpr (is_quantized<F>) {
    constexpr float most = 65504;
    const float top = reduce_warp(magnitude(v), Larger());
    float with_sign = 0;
    if constexpr (F::rule == Rule::absmax_signed) {
      const uint32_t who = __ballot_sync(~0u, magnitude(v) == top);
      with_sign = __shfl_sync(~0u, v, who ? __ffs(who) - 1 : 0);
    }
    Found found = find_scale<F>(0, 0, top, with_sign);
    found.scale = found.scale > most ? most : found.scale < -most ? -most : found.scale;
    uint32_t code = find_code<F>(v, found);
    if constexpr (values_of_code<F>() == 2) code |= __shfl_down_sync(~0u, code, 16) << 4;
    return {code, to_half(found.scale)};
  }
}

template <class F>
__device__ __forceinline__ void put_code(uint8_t* p, uint32_t code) {
  if constexpr (code_bytes<F>() == 4)
    *reinterpret_cast<uint32_t*>(p) = code;
  else if constexpr (code_bytes<F>() == 2)
    *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(code);
  else
    *p = static_cast<uint8_t>(code);
}

// Lanes of a warp put block `block` of a token into a page.
template <class F, bool is_value>
__device__ __forceinline__ void put_kv(uint8_t* page, int token, int block, int lane, int dims, const PackedKv& x) {
  if constexpr (is_quantized<F>) {
    constexpr int codes = codes_of_block<F>;
    if (lane < codes) put_code<F>(page + code_at<F, is_value>(token, block * codes + lane, dims), x.code);
    if (lane == 0) *reinterpret_cast<uint16_t*>(page + scale_at<F, is_value>(token, block, dims)) = x.scale;
  } else if (block * 32 + lane < dims) {
    put_code<F>(page + code_at<F, is_value>(token, block * 32 + lane, dims), x.code);
  }
}

// The same into a row of its own: codes, then scales.
template <class F>
__device__ __forceinline__ void put_row(uint8_t* row, int block, int lane, int dims, const PackedKv& x) {
  if constexpr (is_quantized<F>) {
    constexpr int codes = codes_of_block<F>;
    if (lane < codes) put_code<F>(row + block * codes + lane, x.code);
    if (lane == 0) reinterpret_cast<uint16_t*>(row + row_codes_bytes<F>(dims))[block] = x.scale;
  } else if (block * 32 + lane < dims) {
    put_code<F>(row + code_bytes<F>() * (block * 32 + lane), x.code);
  }
}

// Pages (source, destination) of several arrays, {address, bytes of a page} each: gridDim.y arrays, gridDim.z pairs.
// Bytes are multiples of 16.
struct PagePairs {
  int source[8], destination[8];
};
__device__ __forceinline__ void copy_pages(const ulonglong2* arrays, const PagePairs& pairs) {
  const ulonglong2 array = arrays[blockIdx.y];
  int source = 0, destination = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i == blockIdx.z) source = pairs.source[i], destination = pairs.destination[i];
  const uint4* from = reinterpret_cast<const uint4*>(array.x + source * array.y);
  uint4* to = reinterpret_cast<uint4*>(array.x + destination * array.y);
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < array.y / 16;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

}  // namespace fewbit
