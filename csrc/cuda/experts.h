// What the chosen experts make of a few tokens: pairs of a token and an expert, each a product of one row in 8 bits (or
// twice 8) with the tiles of its expert, as in gemv.h.
//
// The matrices of experts follow each other; each begins at a row that is a multiple of 16 (`pitch` rows).
#pragma once
#include "gemv.h"
#include "route.h"

namespace fewbit {

// A part of a packed stack of matrices, and biases (experts, n) or null.
struct Matrices {
  Planes planes;
  const float* bias;
  int pitch;

  __device__ __forceinline__ int tile(int expert, int tile) const { return expert * (pitch / 8) + tile; }
};

// 8-bit activations of one row: [part][granule].
struct Input {
  const int4* x;
  const int2* xm;
};

template <class T, int parts>
__device__ __forceinline__ float dot_parts(const Raw& raw, const Input& in, int granules, int g) {
  float sum = 0;
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    const int at = part * granules + g;
    sum += dot_granule<T>(raw, load_input(in.x + 2 * at), load_input(in.x + 2 * at + 1), load_input(in.xm + at));
  }
  return sum;
}

// The sums of a warp's tile of 8 rows over every WK-th column of tiles from `first` on, 4 of them in flight.
template <class T, int WK, int parts>
__device__ __forceinline__ float dot_tile(const Planes& p, int Q, int tile, int first, int lane, const Input& in) {
  constexpr int U = 4;
  float acc = 0;
  for (int q0 = first; q0 < Q; q0 += U * WK) {
    Raw raw[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (q0 + u * WK < Q) raw[u] = load_granule<T>(p, Q, tile, q0 + u * WK, lane);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (q0 + u * WK < Q) acc += dot_parts<T, parts>(raw[u], in, 4 * Q, (q0 + u * WK) * 4 + lane % 4);
  }
  acc += __shfl_xor_sync(~0u, acc, 1);
  return acc + __shfl_xor_sync(~0u, acc, 2);
}

// kind(gate) * up of pair blockIdx.y, or kind(up) (gate and up are the same then), times the pair's weight, for 32
// rows: 4 x WK warps. Out: their 8-bit codes, [pair][part][granule], a granule a block; those beyond n are zeros.
template <class TG, class TU, bool has_gate, Maths M, int WK, int parts>
__device__ __forceinline__ void pairs_up(const Matrices& gate, const Matrices& up, const int* chosen,
                                         const float* weights, const int4* x, const int2* xm, int8_t* q, int2* qm,
                                         int top_k, int n, int Q) {
  __shared__ float part[2][WK][32];
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = blockIdx.y, row = blockIdx.x * 32 + lane;
  const int expert = chosen[pair], tile = blockIdx.x * 4 + warp / WK;
  if (tile * 8 < n) {
    const size_t token = static_cast<size_t>(pair / top_k) * parts * 4 * Q;
    const Input in = {x + 2 * token, xm + token};
    const float u = dot_tile<TU, WK, parts>(up.planes, Q, up.tile(expert, tile), warp % WK, lane, in);
    float g = 0;
    if constexpr (has_gate) g = dot_tile<TG, WK, parts>(gate.planes, Q, gate.tile(expert, tile), warp % WK, lane, in);
    if (lane % 4 == 0) {
      part[0][warp % WK][warp / WK * 8 + lane / 4] = u;
      part[1][warp % WK][warp / WK * 8 + lane / 4] = g;
    }
  }
  __syncthreads();
  if (warp > 0) return;
  float v = 0;
  if (row < n) {
    float u = 0, g = 0;
#pragma unroll
    for (int w = 0; w < WK; ++w) u += part[0][w][lane], g += part[1][w][lane];
    const size_t at = static_cast<size_t>(expert) * n + row;
    u *= row_scale<TU>(up.planes, expert * up.pitch + row);
    if (up.bias) u += up.bias[at];
    if constexpr (has_gate) {
      g *= row_scale<TG>(gate.planes, expert * gate.pitch + row);
      v = gated<M>(gate.bias ? g + gate.bias[at] : g, u);
    } else {
      v = activated<M>(u);
    }
    v *= weights[pair];
  }
#pragma unroll
  for (int p = 0; p < parts; ++p) {
    const size_t at = (static_cast<size_t>(pair) * parts + p) * gridDim.x + blockIdx.x;
    v = quantize_granule(v, lane, q + 32 * at, qm + at);
  }
}

// Rows of down for token blockIdx.y, over all its pairs as if they were one long row: a tile of 8 rows a block of WK
// warps. The activations have the weights of the pairs in them.
template <class T, int WK, int parts>
__device__ __forceinline__ void pairs_down(const Matrices& down, const int* chosen, const float* weights, const int4* x,
                                           const int2* xm, Rows out, int top_k, int n, int Q) {
  constexpr int U = 4;
  __shared__ float part[WK][8];
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.y;
  const int* own = chosen + token * top_k;
  float acc = 0;
  for (int c0 = warp; c0 < top_k * Q; c0 += U * WK) {
    Raw raw[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int c = c0 + u * WK;
      if (c < top_k * Q) raw[u] = load_granule<T>(down.planes, Q, down.tile(own[c / Q], blockIdx.x), c % Q, lane);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int c = c0 + u * WK;
      if (c >= top_k * Q) continue;
      const size_t at = (static_cast<size_t>(token) * top_k + c / Q) * parts * 4 * Q;
      const float sum = dot_parts<T, parts>(raw[u], {x + 2 * at, xm + at}, 4 * Q, c % Q * 4 + lane % 4);
      acc += T::row_scale ? sum * row_scale<T>(down.planes, own[c / Q] * down.pitch + blockIdx.x * 8 + lane / 4) : sum;
    }
  }
  acc += __shfl_xor_sync(~0u, acc, 1);
  acc += __shfl_xor_sync(~0u, acc, 2);
  if (lane % 4 == 0) part[warp][lane / 4] = acc;
  __syncthreads();
  const int row = blockIdx.x * 8 + threadIdx.x;
  if (threadIdx.x >= 8 || row >= n) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WK; ++w) sum += part[w][threadIdx.x];
  if (down.bias)
    for (int j = 0; j < top_k; ++j)
      sum += weights[token * top_k + j] * down.bias[static_cast<size_t>(own[j]) * n + row];
  out[token][row] = sum;
}

}  // namespace fewbit
