// Where K and V lie in a page of 32 tokens of one head. All that reads or writes pages asks here; ops/cuda/pages.py
// does the same in NumPy.
//
//   K: codes [token][dim], then f16 scales [token][block of 32 dims]
//   V: codes [dim][token], then f16 scales [block][token]: transposed, as mma wants its second operand
//
// Codes are elements (f32, f16, bf16, f8_e4m3) or bytes: one value of q8_0, two of q4_0 as in files, dims i and i + 16
// of a block. So no two tokens share a byte, in V either: [block][16][token]. Quantized dims are padded to whole
// blocks.
#pragma once
#include "encode.h"

namespace fewbit {

enum class Kv { f32, f16, bf16, f8_e4m3, q8_0, q4_0 };

constexpr int kPageTokens = 32;

constexpr bool is_quantized(Kv f) { return f == Kv::q8_0 || f == Kv::q4_0; }
// Of what is not quantized.
constexpr Real real_of(Kv f) {
  return f == Kv::f32 ? Real::f32 : f == Kv::f16 ? Real::f16 : f == Kv::bf16 ? Real::bf16 : Real::f8_e4m3;
}
constexpr int code_bytes(Kv f) { return is_quantized(f) ? 1 : real_bytes(real_of(f)); }
constexpr int scale_blocks(Kv f, int dims) { return is_quantized(f) ? (dims + 31) / 32 : 0; }
// Codes of a token.
constexpr int codes_of(Kv f, int dims) {
  return f == Kv::q8_0 ? scale_blocks(f, dims) * 32 : f == Kv::q4_0 ? scale_blocks(f, dims) * 16 : dims;
}
constexpr int row_codes_bytes(Kv f, int dims) { return codes_of(f, dims) * code_bytes(f); }
constexpr int row_bytes(Kv f, int dims) { return row_codes_bytes(f, dims) + 2 * scale_blocks(f, dims); }
constexpr size_t page_bytes(Kv f, int dims) { return static_cast<size_t>(kPageTokens) * row_bytes(f, dims); }

// The code that holds a dim.
constexpr int code_index(Kv f, int dim) { return f == Kv::q4_0 ? dim / 32 * 16 + dim % 16 : dim; }

// Bytes from the start of a head's page.
template <Kv F, bool is_value>
__device__ __forceinline__ int code_at(int token, int code, int dims) {
  return code_bytes(F) * (is_value ? code * kPageTokens + token : token * codes_of(F, dims) + code);
}
template <Kv F, bool is_value>
__device__ __forceinline__ int scale_at(int token, int block, int dims) {
  const int at = is_value ? block * kPageTokens + token : token * scale_blocks(F, dims) + block;
  return kPageTokens * row_codes_bytes(F, dims) + 2 * at;
}

// A head's page.
template <Kv F>
__device__ __forceinline__ size_t page_at(int page, int head, int kv_heads, int dims) {
  return (static_cast<size_t>(page) * kv_heads + head) * page_bytes(F, dims);
}

// One value. Plain loads: what this kernel wrote before a barrier is seen.
template <Kv F, bool is_value>
__device__ __forceinline__ float read_kv(const uint8_t* page, int token, int dim, int dims) {
  const uint8_t* p = page + code_at<F, is_value>(token, code_index(F, dim), dims);
  if constexpr (!is_quantized(F)) return get<real_of(F)>(p, 0);
  const float scale =
      half_bits(*reinterpret_cast<const uint16_t*>(page + scale_at<F, is_value>(token, dim / 32, dims)));
  if constexpr (F == Kv::q8_0) return scale * static_cast<float>(static_cast<int8_t>(*p));
  return scale * static_cast<float>((dim % 32 < 16 ? *p & 15 : *p >> 4) - 8);
}

// A value of a block of 32, one in each lane, as it is stored: its code (of q4_0: in lanes below 16) and the scale.
struct PackedKv {
  uint32_t code = 0;
  uint16_t scale = 0;
};

template <Kv F>
__device__ __forceinline__ PackedKv pack_kv(float v, int lane) {
  if constexpr (F == Kv::f32) return {__float_as_uint(v), 0};
  if constexpr (F == Kv::f16) return {to_finite_half(v), 0};
  if constexpr (F == Kv::bf16) return {f32_to_bf16(v), 0};
  if constexpr (F == Kv::f8_e4m3) return {f32_to_f8_e4m3(v), 0};
  if constexpr (F == Kv::q8_0) {
    const Found found = find_scale<formats::q8_0>(0, 0, reduce_warp(magnitude(v), Larger()), 0);
    return {find_code<formats::q8_0>(v, found), to_half(found.scale)};
  }
  if constexpr (F == Kv::q4_0) {
    const float top = reduce_warp(magnitude(v), Larger());
    const uint32_t who = __ballot_sync(~0u, magnitude(v) == top);
    const Found found = find_scale<formats::q4_0>(0, 0, top, __shfl_sync(~0u, v, who ? __ffs(who) - 1 : 0));
    const uint32_t code = find_code<formats::q4_0>(v, found);
    return {code | __shfl_down_sync(~0u, code, 16) << 4, to_half(found.scale)};
  }
}

template <Kv F>
__device__ __forceinline__ void put_code(uint8_t* p, uint32_t code) {
  if constexpr (code_bytes(F) == 4)
    *reinterpret_cast<uint32_t*>(p) = code;
  else if constexpr (code_bytes(F) == 2)
    *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(code);
  else
    *p = static_cast<uint8_t>(code);
}

// Lanes of a warp put block `block` of a token into a page.
template <Kv F, bool is_value>
__device__ __forceinline__ void put_kv(uint8_t* page, int token, int block, int lane, int dims, const PackedKv& x) {
  if constexpr (is_quantized(F)) {
    constexpr int codes = F == Kv::q4_0 ? 16 : 32;
    if (lane < codes) put_code<F>(page + code_at<F, is_value>(token, block * codes + lane, dims), x.code);
    if (lane == 0) *reinterpret_cast<uint16_t*>(page + scale_at<F, is_value>(token, block, dims)) = x.scale;
  } else if (block * 32 + lane < dims) {
    put_code<F>(page + code_at<F, is_value>(token, block * 32 + lane, dims), x.code);
  }
}

// The same into a row of its own: codes, then scales.
template <Kv F>
__device__ __forceinline__ void put_row(uint8_t* row, int block, int lane, int dims, const PackedKv& x) {
  if constexpr (is_quantized(F)) {
    constexpr int codes = F == Kv::q4_0 ? 16 : 32;
    if (lane < codes) put_code<F>(row + block * codes + lane, x.code);
    if (lane == 0) reinterpret_cast<uint16_t*>(row + row_codes_bytes(F, dims))[block] = x.scale;
  } else if (block * 32 + lane < dims) {
    put_code<F>(row + code_bytes(F) * (block * 32 + lane), x.code);
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
