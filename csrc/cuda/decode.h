// Tiles -> rows of f32, f16 or bf16, with the operations of formats/decode.py in their order: the same bits. A warp a
// tile, a block some tiles along k; rows go through shared memory so that whole lines are written.
#pragma once
#include "tile.h"

namespace fewbit {

template <class T, int t>
__device__ __forceinline__ void decode_values(const Raw& r, float row_scale, float (&out)[32]) {
  const uint32_t w = codes4<T, t>(r);
  constexpr int half = T::halves ? t / 4 : 0;
  float scale = (T::row_scale ? row_scale : scale_of<T, half>(r));
  float offset = T::row_scale ? row_scale : offset_of<T>(r);
  if constexpr (T::scale_ints) scale = __fmul_rn(scale, static_cast<float>(small_scale<T, half>(r)));
  if constexpr (T::offset_ints) offset = __fmul_rn(offset, static_cast<float>(small_offset<T, half>(r)));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int code = T::is_signed ? static_cast<int8_t>(w >> (8 * i)) : static_cast<int>(w >> (8 * i) & 255);
    float v = __fmul_rn(static_cast<float>(T::times * code - T::zero), scale);
    if constexpr (T::offset) v = __fadd_rn(v, T::Record::offset_sign * offset);
    out[4 * t + i] = v;
  }
  if constexpr (t + 1 < 8) decode_values<T, t + 1>(r, row_scale, out);
}

// out: rows of `width` values (a multiple of 8), of which k or more are real.
template <class T, Real Y>
__device__ __forceinline__ void decode_tiles(const Planes& p, void* out, int n, int width, int Q) {
  constexpr int warps = 4, chunks = Y == Real::f32 ? 8 : 4;  // of 16 bytes a granule
  __shared__ uint4 staged[warps][32 * chunks];
  start_next();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, g = lane % 4;
  const int tile = blockIdx.x, q = blockIdx.y * warps + warp;
  if (q >= Q) {
    wait_for_previous();
    return;
  }
  float v[32];
  decode_values<T, 0>(load_granule<T>(p, Q, tile, q, lane), row_scale<T>(p, tile * 8 + row), v);
  wait_for_previous();
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    uint4 packed;
    if constexpr (Y == Real::f32) {
      packed = {__float_as_uint(v[4 * c]), __float_as_uint(v[4 * c + 1]), __float_as_uint(v[4 * c + 2]),
                __float_as_uint(v[4 * c + 3])};
    } else {
      const float* from = v + 8 * c;
      packed = {pack_two<Y>(from[0], from[1]), pack_two<Y>(from[2], from[3]), pack_two<Y>(from[4], from[5]),
                pack_two<Y>(from[6], from[7])};
    }
    staged[warp][(row * 4 + g) * chunks + (c ^ (chunks == 4 ? g / 2 | row % 2 * 2 : g | row % 2 * 4))] = packed;
  }
  __syncwarp();
  constexpr int line = 4 * chunks, values = Y == Real::f32 ? 4 : 8;  // chunks of a row, values of a chunk
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const int at = i * 32 + lane, r = at / line, c = at % line, column = q * 128 + c * values, to = c / chunks;
    const uint4* from =
        &staged[warp][(r * 4 + to) * chunks + (c % chunks ^ (chunks == 4 ? to / 2 | r % 2 * 2 : to | r % 2 * 4))];
    const size_t place = static_cast<size_t>(tile * 8 + r) * width + column;
    if (tile * 8 + r >= n) continue;
    if (width % values == 0 && column + values <= width) {
      static_cast<uint4*>(out)[place / values] = *from;
    } else {
#pragma unroll 1
      for (int e = 0; e < values && column + e < width; ++e) {
        if constexpr (Y == Real::f32)
          static_cast<uint32_t*>(out)[place + e] = reinterpret_cast<const uint32_t*>(from)[e];
        else
          static_cast<uint16_t*>(out)[place + e] = reinterpret_cast<const uint16_t*>(from)[e];
      }
    }
  }
}

}  // namespace fewbit
