// Activations as the products take them: in 8 bits (or twice 8) for one token, in f16 fragments for some, in bf16 rows
// for many; and the norm before them. A thread holds 8 values of a row at a time.
#pragma once
#include "device.h"
#include "maths.h"

namespace fewbit {

constexpr int form_threads = 512, form_values = 8 * form_threads;  // values of a round

__device__ __forceinline__ bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Values i to i + 7 of a row of k; zeros behind its end.
template <Real X>
__device__ __forceinline__ void load_values(const void* row, bool aligned, int i, int k, float (&v)[8]) {
  if (aligned && i + 8 <= k) {
    if constexpr (X == Real::f32) {
      const float4 *p = static_cast<const float4*>(row) + i / 4, a = p[0], b = p[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
      const uint4 w = static_cast<const uint4*>(row)[i / 8];
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint16_t both[2] = {static_cast<uint16_t>(words[e]), static_cast<uint16_t>(words[e] >> 16)};
        v[2 * e] = get<X>(both, 0), v[2 * e + 1] = get<X>(both, 1);
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = i + e < k ? get<X>(row, i + e) : 0.0f;
}

template <Real Y>
__device__ __forceinline__ uint4 pack_values(const float (&v)[8]) {
  return {pack_two<Y>(v[0], v[1]), pack_two<Y>(v[2], v[3]), pack_two<Y>(v[4], v[5]), pack_two<Y>(v[6], v[7])};
}

// 32 values, one in each lane -> 8 bits, a scale, the sums of 16. Returns what 8 bits lose.
__device__ __forceinline__ float quantize_granule(float v, int lane, int8_t* q, int2* xm) {
  const float d = reduce_warp(magnitude(v), Larger()) / 127.0f;
  const int c = d > 0 ? __float2int_rn(v / d) : 0;
  q[lane] = static_cast<int8_t>(c);
  int sum = c;
#pragma unroll
  for (int s = 8; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
  const int high = __shfl_sync(~0u, sum, 16);
  if (lane == 0) *xm = {__float_as_int(d), (sum & 0xFFFF) | high << 16};
  return v - static_cast<float>(c) * d;
}

// 8 values, which become what 8 bits lose of them; four threads have a granule. Out: codes, scale, sums of 16.
__device__ __forceinline__ void quantize_values(float (&v)[8], bool writes, int i, int8_t* q, int2* xm) {
  float most = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) most = Larger()(most, magnitude(v[e]));
  most = Larger()(most, __shfl_xor_sync(~0u, most, 1));
  most = Larger()(most, __shfl_xor_sync(~0u, most, 2));
  const float d = most / 127.0f;
  uint32_t words[2] = {};
  int sum = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int c = d > 0 ? __float2int_rn(v[e] / d) : 0;
    words[e / 4] |= (c & 255u) << (8 * (e % 4));
    sum += c;
    v[e] -= static_cast<float>(c) * d;
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  const int high = __shfl_xor_sync(~0u, sum, 2);
  if (!writes) return;
  *reinterpret_cast<uint2*>(q + i) = {words[0], words[1]};
  if (threadIdx.x % 4 == 0) xm[i / 32] = {__float_as_int(d), (sum & 0xFFFF) | high << 16};
}

// A row of k values in 8 bits, padded to whole tiles of 128. Out: [part][granule].
template <Real X, int parts>
__device__ __forceinline__ void quantize_row(const void* x, int8_t* q, int2* xm, int k, int padded) {
  start_next();
  wait_for_previous();
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  float v[8];
  load_values<X>(x, is_aligned(x), i, k, v);
#pragma unroll
  for (int part = 0; part < parts; ++part)
    quantize_values(v, i < padded, i, q + part * padded, xm + part * padded / 32);
}

// The sum of a, and the largest b, of a block of form_threads.
__device__ __forceinline__ float2 reduce_both(float a, float b) {
  __shared__ float2 of_warp[form_threads / 32];
  a = reduce_warp(a, Added()), b = reduce_warp(b, Larger());
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = {a, b};
  __syncthreads();
  float2 all = of_warp[0];
#pragma unroll
  for (int i = 1; i < form_threads / 32; ++i) all = {all.x + of_warp[i].x, Larger()(all.y, of_warp[i].y)};
  return all;
}

// A row, normed by x / rms(x) * weight where Norm, in registers; `take` gets 8 values, their place, the largest of all.
template <Real X, int rounds, bool Norm, bool Most, class F>
__device__ __forceinline__ void for_row(const void* row, const float* weight, float eps, int k, F take) {
  float v[rounds][8], w[Norm ? rounds : 1][8];
  if constexpr (Norm)
#pragma unroll
    for (int r = 0; r < rounds; ++r)
      load_values<Real::f32>(weight, is_aligned(weight), r * form_values + threadIdx.x * 8, k, w[r]);
  wait_for_previous();
  const bool aligned = is_aligned(row);
#pragma unroll
  for (int r = 0; r < rounds; ++r) load_values<X>(row, aligned, r * form_values + threadIdx.x * 8, k, v[r]);
  float squares = 0, most = 0, scale = 1;
  if constexpr (Norm || Most) {
#pragma unroll
    for (int r = 0; r < rounds; ++r)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if constexpr (Norm) squares += v[r][e] * v[r][e], v[r][e] *= w[r][e];
        most = Larger()(most, magnitude(v[r][e]));
      }
    const float2 all = reduce_both(squares, most);
    if constexpr (Norm) scale = rsqrtf(all.x / static_cast<float>(k) + eps);
    most = all.y * scale;
  }
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    if constexpr (Norm)
#pragma unroll
      for (int e = 0; e < 8; ++e) v[r][e] *= scale;
    take(v[r], r * form_values + static_cast<int>(threadIdx.x) * 8, most);
  }
}

// One token, normed, in 8 bits; one block.
template <Real X, int rounds, int parts>
__device__ __forceinline__ void norm_quantize_row(const void* x, const float* weight, float eps, int8_t* q, int2* xm,
                                                  int k, int padded) {
  start_next();
  for_row<X, rounds, true, false>(x, weight, eps, k, [&](float (&v)[8], int i, float) {
#pragma unroll
    for (int part = 0; part < parts; ++part)
      quantize_values(v, i < padded, i, q + part * padded, xm + part * padded / 32);
  });
}

// The power of two that brings the largest value of a row to 2^10 at most, 2^11 less a little.
__device__ __forceinline__ float scale_up(float most) {
  const uint32_t exponent = __float_as_uint(most) >> 23;
  return exponent > 10 && exponent < 255 ? __uint_as_float((264u - exponent) << 23) : 1.0f;
}

// Where value `at` of a token lies in fragments and in panels (fragments.h) of so many token tiles. More tiles than
// a panel can have make two.
constexpr int most_panel_tiles = 16;
__device__ __forceinline__ size_t fragment_place(int at, int token, int tiles) {
  const int q = at / 128, g = at / 32 % 4, s = at / 8 % 4;
  return (((static_cast<size_t>(q) * 4 + s) * tiles + token / 8) * 32 + token % 8 * 4 + g) * 8 + at % 8;
}
__device__ __forceinline__ int panel_tiles(int tiles) { return tiles > most_panel_tiles ? tiles / 2 : tiles; }
__device__ __forceinline__ size_t panel_place(int at, int token, int tiles) {
  const int q = at / 128, g = at / 32 % 4, pair = at / 2 % 16;  // 4 s + c
  const int own = panel_tiles(tiles), before = token / 8 < own ? 0 : own;
  return (((static_cast<size_t>(q) * tiles + before) * 16 + pair * own + token / 8 - before) * 32 + token % 8 * 4 + g) *
             2 +
         at % 2;
}

// Tokens -> f16 in the order of fragments or panels (fragments.h), each scaled by a power of two so that none
// overflows; a block a token, of whole tiles of 8 with padding.
template <Real X, int rounds, bool Norm, bool Panels>
__device__ __forceinline__ void pack_fragments(const void* x, int stride, const float* weight, float eps, uint4* out,
                                               float* token_scale, int k, int padded, int tokens) {
  start_next();
  const int token = blockIdx.x, tiles = gridDim.x / 8;
  const size_t skipped = static_cast<size_t>(token) * stride * real_bytes(X);
  const void* row = static_cast<const uint8_t*>(x) + (token < tokens ? skipped : 0);
  for_row<X, rounds, Norm, true>(row, weight, eps, token < tokens ? k : 0, [&](float (&v)[8], int i, float most) {
    const float up = scale_up(most);
    if (i == 0) token_scale[token] = 1.0f / up;
    if (i >= padded) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = token < tokens ? v[e] * up : 0.0f;
    const uint4 packed = pack_values<Real::f16>(v);
    if constexpr (Panels) {
      uint32_t* to = reinterpret_cast<uint32_t*>(out) + panel_place(i, token, tiles) / 2;
      const int apart = 32 * panel_tiles(tiles);
      to[0] = packed.x, to[apart] = packed.y, to[2 * apart] = packed.z, to[3 * apart] = packed.w;
    } else {
      out[fragment_place(i, token, tiles) / 8] = packed;
    }
  });
}

// Tokens -> rows of `width` values, a multiple of 8, in f32, f16 or bf16; a block a token.
template <Real X, Real Y, int rounds, bool Norm>
__device__ __forceinline__ void form_rows(const void* x, int stride, const float* weight, float eps, void* out, int k,
                                          int width) {
  start_next();
  const size_t token = blockIdx.x;
  const void* row = static_cast<const uint8_t*>(x) + token * stride * real_bytes(X);
  for_row<X, rounds, Norm, false>(row, weight, eps, k, [&](float (&v)[8], int i, float) {
    if (i >= width) return;
    const size_t at = token * width + i;
    if constexpr (Y == Real::f32) {
      float4* to = static_cast<float4*>(out) + at / 4;
      to[0] = {v[0], v[1], v[2], v[3]}, to[1] = {v[4], v[5], v[6], v[7]};
    } else {
      static_cast<uint4*>(out)[at / 8] = pack_values<Y>(v);
    }
  });
}

// Tokens -> rows of `width` values in f16, each scaled by a power of two so that none overflows; a block a token.
template <Real X, int rounds, bool Norm>
__device__ __forceinline__ void scale_rows(const void* x, int stride, const float* weight, float eps, void* out,
                                           float* token_scale, int k, int width) {
  start_next();
  const size_t token = blockIdx.x;
  const void* row = static_cast<const uint8_t*>(x) + token * stride * real_bytes(X);
  for_row<X, rounds, Norm, true>(row, weight, eps, k, [&](float (&v)[8], int i, float most) {
    const float up = scale_up(most);
    if (i == 0) token_scale[token] = 1.0f / up;
    if (i >= width) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] *= up;
    static_cast<uint4*>(out)[(token * width + i) / 8] = pack_values<Real::f16>(v);
  });
}

// y = x * scale + bias + residual, the last two of which may be missing: products of scaled rows. gridDim.x rows.
__device__ __forceinline__ void end_rows(const float* x, int x_stride, const float* token_scale, float* y, int stride,
                                         const float* bias, const float* residual, int residual_stride, int n) {
  start_next();
  wait_for_previous();
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const size_t row = blockIdx.x;
  float v = x[row * x_stride + i] * token_scale[row] + (bias ? bias[i] : 0.0f);
  if (residual) v += residual[row * residual_stride + i];
  y[row * stride + i] = v;
}

// The gates of rows of a product: 8 values of the gate are at `step` times their number, those that they multiply
// `apart` behind them. Out: n values a row, with zeros up to `width`, a multiple of 8 where Y is bf16; gridDim.x rows.
template <Maths M, Real Y>
__device__ __forceinline__ void gate_rows(const float* x, int stride, int step, int apart, void* out, int width,
                                          int n) {
  start_next();
  wait_for_previous();
  const int c = blockIdx.y * blockDim.x + threadIdx.x;
  if (c * 8 >= width) return;
  const float* row = x + static_cast<size_t>(blockIdx.x) * stride + static_cast<size_t>(c) * step;
  const bool aligned = is_aligned(row) && apart % 4 == 0;
  float gate[8], up[8];
  load_values<Real::f32>(row, aligned, 0, n - c * 8, gate);
  load_values<Real::f32>(row + apart, aligned, 0, n - c * 8, up);
#pragma unroll
  for (int e = 0; e < 8; ++e) gate[e] = c * 8 + e < n ? gated<M>(gate[e], up[e]) : 0.0f;
  const size_t at = static_cast<size_t>(blockIdx.x) * width + c * 8;
  if constexpr (Y == Real::f32) {
    for (int e = 0; e < 8 && c * 8 + e < n; ++e) static_cast<float*>(out)[at + e] = gate[e];
  } else {
    static_cast<uint4*>(out)[at / 8] = pack_values<Y>(gate);
  }
}

// y = bias + residual, either of which may be missing: what a product is added to. gridDim.x rows.
__device__ __forceinline__ void begin_rows(float* y, int stride, const float* bias, const float* residual,
                                           int residual_stride, int n) {
  start_next();
  wait_for_previous();
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = bias ? bias[i] : 0.0f;
  const size_t row = blockIdx.x;
  y[row * stride + i] = residual ? v + residual[row * residual_stride + i] : v;
}

// Rows of `from` values -> rows of `to` values of another type, padded with zeros: gridDim.x rows.
template <Real X, Real Y>
__device__ __forceinline__ void cast_rows(const void* x, void* y, int from, int to) {
  wait_for_previous();
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  const size_t row = blockIdx.x;
  if (i < to) put<Y>(y, row * to + i, i < from ? get<X>(x, row * from + i) : 0.0f);
}

}  // namespace fewbit
