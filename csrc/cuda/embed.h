// Rows of packed tables, decoded; and products of each head with a small packed matrix of its own.
#pragma once
#include "decode.h"
#include "row_maths.h"
#include "rows.h"

namespace fewbit {

// The row of the table that is wanted: an id, or below 0 one that the step before sampled; -1 where there is no such
// row.
__device__ __forceinline__ int find_row(const int* ids, const int* previous, int token, int n) {
  int id = ids[token];
  if (id < 0 && previous) id = previous[-1 - id];
  return id < n ? id : -1;
}

// A warp decodes 32 granules of a row, a lane each; they go through shared memory so that whole lines are written.
template <class T>
__device__ __forceinline__ void embed_tiles(const Planes& p, const int* ids, const int* previous, float scale, Rows out,
                                            int n, int k, int Q) {
  constexpr int warps = 4;
  __shared__ float staged[warps][32][33];
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
  const int row = find_row(ids, previous, token, n), first = (blockIdx.y * warps + warp) * 32, g = first + lane;
  if (first * 32 >= k) return;
  float v[32] = {};
  if (row >= 0 && g * 32 < k)
    decode_values<T, 0>(load_granule<T>(p, Q, row / 8, g / 4, row % 8 * 4 + g % 4), row_scale<T>(p, row), v);
#pragma unroll
  for (int i = 0; i < 32; ++i) staged[warp][lane][i] = v[i];
  __syncwarp();
  float* to = out[token];
  for (int i = 0; i < 32; ++i) {
    const int column = (first + i) * 32 + lane;
    if (column < k) to[column] = staged[warp][i][lane] * scale;
  }
}

template <class R>
__device__ __forceinline__ void embed_rows(const uint8_t* data, const RowFields& at, int group, const int* ids,
                                           const int* previous, float scale, Rows out, int n, int k) {
  start_next();
  wait_for_previous();
  const int token = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= k) return;
  const int row = find_row(ids, previous, token, n);
  const uint8_t* from = data + static_cast<size_t>(row < 0 ? 0 : row) * at.row_bytes;
  out[token][i] = row < 0 ? 0.0f : read_value<R>(from, at, group, i) * scale;
}

// For each head h: x[h] @ w[h].T; matrices of n rows follow each other, each from a row that is a multiple of 16 on
// (`pitch` rows). A warp has a row tile of a head and `kTokens` tokens; weights and sums are f32.
constexpr int kTokens = 8;

template <class T>
__device__ __forceinline__ void heads_tiles(const Planes& p, ConstRows x, Rows out, int tokens, int heads, int n,
                                            int pitch, int k, int Q) {
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, id = (blockIdx.y * blockDim.x + threadIdx.x) / 32, tiles = (n + 7) / 8;
  const int head = id / tiles, tile = head * (pitch / 8) + id % tiles, row = id % tiles * 8 + lane / 4;
  const int first = blockIdx.x * kTokens, count = tokens - first < kTokens ? tokens - first : kTokens;
  if (head >= heads) return;
  float sum[kTokens] = {};
  for (int q = 0; q < Q; ++q) {
    float w[32];
    decode_values<T, 0>(load_granule<T>(p, Q, tile, q, lane), row_scale<T>(p, tile * 8 + lane / 4), w);
    const int at = q * 128 + lane % 4 * 32, real = k - at < 32 ? k - at : 32;
    for (int t = 0; t < count; ++t) {
      const float* own = x[first + t] + head * k + at;
      float part = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (i < real) part += own[i] * w[i];
#pragma unroll
      for (int u = 0; u < kTokens; ++u)  // sums stay in registers
        if (u == t) sum[u] += part;
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float v = sum[t] + __shfl_xor_sync(~0u, sum[t], 1);
    v += __shfl_xor_sync(~0u, v, 2);
    if (lane % 4 == 0 && t < count && row < n) out[first + t][head * n + row] = v;
  }
}

template <class R>
__device__ __forceinline__ void heads_rows(const uint8_t* data, const RowFields& at, int group, ConstRows x, Rows out,
                                           int tokens, int heads, int n, int pitch, int k) {
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, id = (blockIdx.y * blockDim.x + threadIdx.x) / 32, head = id / n, row = id % n;
  const int first = blockIdx.x * kTokens, count = tokens - first < kTokens ? tokens - first : kTokens;
  if (head >= heads) return;
  const uint8_t* w = data + (static_cast<size_t>(head) * pitch + row) * at.row_bytes;
  float sum[kTokens] = {};
  for (int i = lane; i < k; i += 32) {
    const float v = read_value<R>(w, at, group, i);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      if (t < count) sum[t] += v * x[first + t][head * k + i];
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float v = reduce_warp(sum[t], Added());
    if (lane == 0 && t < count) out[first + t][head * n + row] = v;
  }
}

}  // namespace fewbit
