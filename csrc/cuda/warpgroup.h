// Products of a warpgroup, four warps: m64nNk16 of f16 with sums in f32. A is in registers, each warp has 16 of its
// rows as the fragments of mma.m16n8k16, and so are its sums; B, N tokens by 16 values, is in shared memory.
//
// B lies as core matrices, 8 tokens by 16 bytes along k, 128 bytes behind each other, without swizzling. Its descriptor
// (PTX, "Matrix Descriptor Format") has the address in bits 0-13, the offset of the second core matrix along k (leading
// dimension byte offset) in 16-29, that of the next 8 tokens (stride dimension byte offset) in 32-45, all without their
// last four bits, and 0 in 62-63: no swizzling.
#pragma once
#include "device.h"

namespace fewbit {

constexpr uint32_t core_bytes = 128;

__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t leading_bytes) {
  const uint64_t stride = core_bytes >> 4, leading = (leading_bytes & 0x3FFFFu) >> 4;
  return stride << 32 | leading << 16 | (address & 0x3FFFFu) >> 4;
}
// The descriptor of what lies so many bytes further.
__device__ __forceinline__ uint64_t behind(uint64_t descriptor, uint32_t bytes) {
  return (descriptor >> 32) << 32 | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// Registers of products may be written before this; shared memory that this thread wrote is there for products.
__device__ __forceinline__ void fence_warpgroup() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void commit_warpgroup() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all groups but the last N have ended.
template <int N>
__device__ __forceinline__ void wait_warpgroup() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Sums of NT tiles of 8 tokens: += A B.
__device__ __forceinline__ void multiply_warpgroup(float (&c)[6][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                   uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23}, "
      "{%24, %25, %26, %27}, %28, %29, %30, %31, %32;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(1), "n"(1), "n"(1), "n"(0));
}
__device__ __forceinline__ void multiply_warpgroup(float (&c)[8][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                   uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, %37, %38, %39, %40;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(1), "n"(1), "n"(1), "n"(0));
}
__device__ __forceinline__ void multiply_warpgroup(float (&c)[12][4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                   uint32_t a3, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, %53, %54, %55, %56;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(1), "n"(1), "n"(1), "n"(0));
}
__device__ __forceinline__ void multiply_warpgroup(float (&c)[16][4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                   uint32_t a3, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, %69, %70, %71, %72;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]),
        "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]),
        "+f"(c[15][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(1), "n"(1), "n"(1), "n"(0));
}

}  // namespace fewbit
