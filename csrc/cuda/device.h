// What kernels say to the GPU in its own words: loads, conversions, dependent launches.
#pragma once
#include "formats.generated.h"
#include "formats/read.h"

namespace fewbit {

// Weights are read once: loads in program order, first to leave L1, never moved behind the wait below.
__device__ __forceinline__ uint4 load_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::evict_first.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.L1::evict_first.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_4(const void* p) {
  uint32_t v;
  asm volatile("ld.global.L1::evict_first.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_2(const void* p) {
  uint16_t v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_1(const void* p) {
  uint32_t v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
template <int Bytes>
__device__ __forceinline__ uint32_t load_word(const void* p) {
  if constexpr (Bytes == 4) return load_4(p);
  if constexpr (Bytes == 2) return load_2(p);
  if constexpr (Bytes == 1) return load_1(p);
}

// Activations were written by the kernel before: read after the wait, kept in L1.
__device__ __forceinline__ int4 load_input(const int4* p) {
  int4 v;
  asm volatile("ld.global.v4.s32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ int2 load_input(const int2* p) {
  int2 v;
  asm volatile("ld.global.v2.s32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// Programmatic dependent launch: the next kernel may begin; all before this one have ended.
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float half_bits(uint32_t v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<uint16_t>(v)));
  return f;
}
__device__ __forceinline__ uint16_t to_half(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
__device__ __forceinline__ uint16_t to_bf16(float f) {
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
// Two of f16 or bf16 side by side, the first in the low half.
template <Real T>
__device__ __forceinline__ uint32_t pack_two(float lo, float hi) {
  static_assert(T == Real::f16 || T == Real::bf16);
  uint32_t r;
  if constexpr (T == Real::f16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// Two floats as f16, the first in the low half; what is too large becomes the largest, NaN stays NaN.
__device__ __forceinline__ uint32_t pack_half2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ uint16_t to_finite_half(float f) { return static_cast<uint16_t>(pack_half2(f, 0)); }
__device__ __forceinline__ float magnitude(float f) { return __uint_as_float(__float_as_uint(f) & 0x7fffffffu); }

__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Four 8-bit floats to pairs of f16: what f8_e4m3_to_f16_part does, for four at once, times 256. Exact; NaN stays NaN.
__device__ __forceinline__ void f8_e4m3_to_f16(uint32_t w, uint32_t& lo, uint32_t& hi) {
  const uint32_t u = w & 0x7f7f7f7fu, nan = (u + 0x01010101u) & 0x80808080u;
  const uint32_t high = (w & 0x80808080u) | ((u | nan) >> 1 & 0x7f7f7f7fu), low = (u << 7) & 0x80808080u;
  lo = multiply2(__byte_perm(low, high, 0x5140), 0x5c005c00u);
  hi = multiply2(__byte_perm(low, high, 0x7362), 0x5c005c00u);
}

// One element of an array of f32, f16, bf16 or 8-bit floats.
template <Real T>
__device__ __forceinline__ float get(const void* p, size_t i) {
  if constexpr (T == Real::f32) return static_cast<const float*>(p)[i];
  if constexpr (T == Real::f16) return half_bits(static_cast<const uint16_t*>(p)[i]);
  if constexpr (T == Real::bf16) return bf16_to_f32(static_cast<const uint16_t*>(p)[i]);
  if constexpr (T == Real::f8_e4m3) return f8_e4m3_to_f32(static_cast<const uint8_t*>(p)[i]);
}
template <Real T>
__device__ __forceinline__ void put(void* p, size_t i, float v) {
  if constexpr (T == Real::f32) static_cast<float*>(p)[i] = v;
  if constexpr (T == Real::f16) static_cast<uint16_t*>(p)[i] = to_half(v);
  if constexpr (T == Real::bf16) static_cast<uint16_t*>(p)[i] = to_bf16(v);
}

template <class F>
__device__ __forceinline__ float reduce_warp(float v, F join) {
#pragma unroll
  for (int s = 16; s; s /= 2) v = join(v, __shfl_xor_sync(~0u, v, s));
  return v;
}
struct Larger {  // NaN where either is
  __device__ float operator()(float a, float b) const {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
};
struct Added {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// The same for a block of whole warps, in a fixed order; every thread gets it.
template <class F>
__device__ __forceinline__ float reduce_block(float v, F join) {
  __shared__ float parts[32];
  const int warps = blockDim.x / 32;
  v = reduce_warp(v, join);
  __syncthreads();  // the parts of a reduction before have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
  for (int i = 1; i < warps; ++i) v = join(v, parts[i]);
  return v;
}

}  // namespace fewbit
