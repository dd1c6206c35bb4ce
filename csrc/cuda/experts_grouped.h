// What the chosen experts make of many tokens: pairs of a token and an expert, listed by expert, multiplied 8 NT at a
// time with the matrix of their expert: f16 fragments decoded in registers, as in fragments.h.
//
// Inputs are rows of f16, padded to whole tiles: what a lane needs of a token lies in 16 bytes. The order of all sums
// is the same for every NT.
#pragma once
#include "experts.h"
#include "fragments.h"
#include "rows.h"

namespace fewbit {

// f32 rows -> f16 rows of Q tiles, each scaled by a power of two so that none overflows: a block a row.
__device__ __forceinline__ void pack_rows(ConstRows x, uint16_t* out, float* row_scale, int k, int Q) {
  start_next();
  wait_for_previous();
  const float* own = x[blockIdx.x];
  float most = 0;
  for (int i = threadIdx.x; i < k; i += blockDim.x) most = Larger()(most, magnitude(own[i]));
  most = reduce_block(most, Larger());
  const uint32_t exponent = __float_as_uint(most) >> 23;  // 2^10 at most afterwards, 2^11 less a little
  const float up = exponent > 10 && exponent < 255 ? __uint_as_float((264u - exponent) << 23) : 1.0f;
  if (threadIdx.x == 0) row_scale[blockIdx.x] = 1.0f / up;
  uint16_t* to = out + static_cast<size_t>(blockIdx.x) * Q * 128;
  for (int i = threadIdx.x; i < Q * 128; i += blockDim.x) to[i] = to_half(i < k ? own[i] * up : 0.0f);
}

// Values 8 s to 8 s + 7 of the granules of two pairs of row tiles, of one matrix or of two.
template <class TA, class TB, bool two, int NT, int s>
__device__ __forceinline__ void grouped_step(const Raw (&raw)[2][2], const Scales (&k)[2][2], const uint4* x,
                                             const uint32_t (&at)[NT], float (&acc)[2][NT][4]) {
  uint4 b[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int4 v = load_input(reinterpret_cast<const int4*>(x + at[n]) + s);
    b[n] = {static_cast<uint32_t>(v.x), static_cast<uint32_t>(v.y), static_cast<uint32_t>(v.z),
            static_cast<uint32_t>(v.w)};
  }
  multiply_fragment<TA, NT, s>(raw[0], k[0], b, acc[0]);
  if constexpr (two) multiply_fragment<TB, NT, s>(raw[1], k[1], b, acc[1]);
}

// Where the tile pairs begin that a warp multiplies, and the gain of each tensor.
struct Operand {
  Planes planes;
  float gain;
  int tile;
};

// x: f16 rows; at: where those of this lane's tokens begin, in 16 bytes, with the lane's granule.
template <class TA, class TB, bool two, int NT>
__device__ __forceinline__ void grouped_product(const Operand& a, const Operand& b, int Q, const uint4* x,
                                                uint32_t (&at)[NT], float (&acc)[2][NT][4]) {
  const int lane = threadIdx.x % 32;
  Raw raw[2][2], next[2][2];
  auto load = [&](Raw(&into)[2][2], int q) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      into[0][h] = load_granule<TA>(a.planes, Q, a.tile + h, q, lane);
      if constexpr (two) into[1][h] = load_granule<TB>(b.planes, Q, b.tile + h, q, lane);
    }
  };
  load(next, 0);
  for (int q = 0; q < Q; ++q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) raw[i / 2][i % 2] = next[i / 2][i % 2];
    if (q + 1 < Q) load(next, q + 1);
    Scales k[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      k[0][h] = find_scales<TA>(raw[0][h], a.gain);
      if constexpr (two) k[1][h] = find_scales<TB>(raw[1][h], b.gain);
    }
    grouped_step<TA, TB, two, NT, 0>(raw, k, x, at, acc);
    grouped_step<TA, TB, two, NT, 1>(raw, k, x, at, acc);
    grouped_step<TA, TB, two, NT, 2>(raw, k, x, at, acc);
    grouped_step<TA, TB, two, NT, 3>(raw, k, x, at, acc);
#pragma unroll
    for (int n = 0; n < NT; ++n) at[n] += 16;
  }
}

// Pairs by expert, as list_pairs wrote them; pairs of a token share a row of x where `shared` is top_k, else it is 1.
struct Work {
  const int *lists, *counts;
  int experts, tokens, shared;
};

// The pairs of this block in shared memory, and where the rows of x begin for this lane; false: there is nothing to do.
template <int NT>
__device__ __forceinline__ bool find_work(const Work& work, int Q, int (&pairs)[8 * NT], uint32_t (&at)[NT],
                                          Part& part) {
  const int lane = threadIdx.x % 32;
  part = find_part(work.counts, work.experts, 8 * NT, blockIdx.y);
  if (part.expert < 0) return false;
  const int* list = work.lists + static_cast<size_t>(part.expert) * work.tokens + part.first;
  for (int i = threadIdx.x; i < 8 * NT; i += blockDim.x) pairs[i] = i < part.count ? list[i] : list[0];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < NT; ++n) at[n] = (pairs[n * 8 + lane / 4] / work.shared) * Q * 16 + lane % 4 * 4;
  return true;
}

// h[pair] = kind(gate) * up, or kind(up) without a gate: 4 warps of 16 rows.
template <class TG, class TU, bool has_gate, Maths M, int NT>
__device__ __forceinline__ void grouped_up(const Matrices& gate, float gate_gain, const Matrices& up, float up_gain,
                                           const Work& work, const uint4* x, const float* x_scale, float* h, int n,
                                           int Q) {
  __shared__ int pairs[8 * NT];
  start_next();
  wait_for_previous();
  Part part;
  uint32_t at[NT];
  if (!find_work<NT>(work, Q, pairs, at, part)) return;
  const int lane = threadIdx.x % 32, tile = (blockIdx.x * 4 + threadIdx.x / 32) * 2;
  if (tile * 8 >= n) return;
  float acc[2][NT][4] = {};
  const Operand first = {up.planes, up_gain, up.tile(part.expert, tile)};
  const Operand second = {gate.planes, gate_gain, gate.tile(part.expert, tile)};
  grouped_product<TU, TG, has_gate, NT>(first, second, Q, x, at, acc);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = (tile + i / 2) * 8 + lane / 4;
    if (row >= n) continue;
    const size_t of_bias = static_cast<size_t>(part.expert) * n + row;
    const float u_scale = row_scale<TU>(up.planes, part.expert * up.pitch + row) / up_gain;
    const float g_scale = has_gate ? row_scale<TG>(gate.planes, part.expert * gate.pitch + row) / gate_gain : 0.0f;
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      const int c = t * 8 + lane % 4 * 2 + i % 2;
      if (c >= part.count) continue;
      const float scale = x_scale[pairs[c] / work.shared];
      float u = acc[0][t][i] * (u_scale * scale), g = acc[1][t][i] * (g_scale * scale);
      if (up.bias) u += up.bias[of_bias];
      if (has_gate && gate.bias) g += gate.bias[of_bias];
      float v;
      if constexpr (has_gate)
        v = gated<M>(g, u);
      else
        v = activated<M>(u);
      h[static_cast<size_t>(pairs[c]) * n + row] = v;
    }
  }
}

// y[pair] = down of the pair's row: 4 warps of 32 rows.
template <class T, int NT>
__device__ __forceinline__ void grouped_down(const Matrices& down, float gain, const Work& work, const uint4* x,
                                             const float* x_scale, float* y, int n, int Q) {
  __shared__ int pairs[8 * NT];
  start_next();
  wait_for_previous();
  Part part;
  uint32_t at[NT];
  if (!find_work<NT>(work, Q, pairs, at, part)) return;
  const int lane = threadIdx.x % 32, tile = (blockIdx.x * 4 + threadIdx.x / 32) * 4;
  if (tile * 8 >= n) return;
  float acc[2][NT][4] = {};
  const int own = down.tile(part.expert, tile), other = down.tile(part.expert, (tile + 2) * 8 < n ? tile + 2 : tile);
  grouped_product<T, T, true, NT>({down.planes, gain, own}, {down.planes, gain, other}, Q, x, at, acc);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const int i = r % 4, row = (tile + r / 2) * 8 + lane / 4;
    if (row >= n) continue;
    const float scale = row_scale<T>(down.planes, part.expert * down.pitch + row) / gain;
    const float add = down.bias ? down.bias[static_cast<size_t>(part.expert) * n + row] : 0.0f;
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      const int c = t * 8 + lane % 4 * 2 + i % 2;
      if (c < part.count)
        y[static_cast<size_t>(pairs[c]) * n + row] = acc[r / 4][t][i] * (scale * x_scale[pairs[c] / work.shared]) + add;
    }
  }
}

// The same of weights that stay as in files, by f32: a warp a row of weights and up to 8 pairs.
template <class R>
__device__ __forceinline__ void grouped_rows(const uint8_t* data, const RowFields& fields, int group, const float* bias,
                                             const Work& work, ConstRows x, float* y, int n, int k) {
  constexpr int size = 8;
  start_next();
  wait_for_previous();
  const Part part = find_part(work.counts, work.experts, size, blockIdx.y);
  const int lane = threadIdx.x % 32, row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (part.expert < 0 || row >= n) return;
  const int* list = work.lists + static_cast<size_t>(part.expert) * work.tokens + part.first;
  const uint8_t* w = data + (static_cast<size_t>(part.expert) * n + row) * fields.row_bytes;
  const float* own[size];
#pragma unroll
  for (int c = 0; c < size; ++c) own[c] = x[list[c < part.count ? c : 0] / work.shared];
  float sum[size] = {};
  for (int i = lane; i < k; i += 32) {
    const float v = read_value<R>(w, fields, group, i);
#pragma unroll
    for (int c = 0; c < size; ++c) sum[c] += v * own[c][i];
  }
  const float add = bias ? bias[static_cast<size_t>(part.expert) * n + row] : 0.0f;
#pragma unroll
  for (int c = 0; c < size; ++c) {
    const float v = reduce_warp(sum[c], Added());
    if (lane == 0 && c < part.count) y[static_cast<size_t>(list[c]) * n + row] = v + add;
  }
}

}  // namespace fewbit
