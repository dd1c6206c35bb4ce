// Y = X W^T for a few tokens: a warp takes RT x 16 rows and every WK-th column of tiles, x comes from L1 in the order
// of fragments, the sums of the warps are added in shared memory in their order. A block takes NT tiles of 8 tokens;
// how many they are and which others there are changes nothing in a token's result.
#pragma once
#include "fragments.h"

namespace fewbit {

template <class T, int NT, int RT, int s>
__device__ __forceinline__ void skinny_step(const Raw (&raw)[RT][2], const Scales (&k)[RT][2], const uint4* x,
                                            int tiles, int lane, float (&acc)[RT][NT][4]) {
  uint4 b[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int4 v = load_input(reinterpret_cast<const int4*>(x) + (s * tiles + n) * 32 + lane);
    b[n] = {static_cast<uint32_t>(v.x), static_cast<uint32_t>(v.y), static_cast<uint32_t>(v.z),
            static_cast<uint32_t>(v.w)};
  }
#pragma unroll
  for (int t = 0; t < RT; ++t) multiply_fragment<T, NT, s>(raw[t], k[t], b, acc[t]);
}

// Token tiles whose sums are added at once: as many as shared memory has room for.
constexpr int tiles_at_once(int WK, int RT, int NT) {
  int count = NT;
  while (count > 1 && WK * RT * count > 64) count /= 2;
  return count;
}

// The sums of the warps, `part` [warp][row pair][token tile][4][lane], added and stored.
template <class T, class E, int WK, int RT, int C>
__device__ __forceinline__ void store_sums(const Matrix& m, const Tokens& x, const Result& out, int tile,
                                           int token_tile, const float* part) {
  constexpr int each = E::is_gated ? 2 : 4;
#pragma unroll 1
  for (int e = threadIdx.x; e < RT * C * each * 32; e += 32 * WK) {
    const int from = e % 32, i = e / 32 % each, c = e / (32 * each) % C, t = e / (32 * each) / C;
    const int token = (token_tile + c) * 8 + from % 4 * 2 + i % 2;
    auto sum = [&](int which) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < WK; ++w) v += part[((w * RT * C + t * C + c) * 4 + which) * 32 + from];
      return v;
    };
    if constexpr (E::is_gated) {
      if (token < x.count)
        PairRows<T, E>(m, x, out, tile + 2 * t, from / 4).store(token, x.scale(token), sum(i), sum(i + 2));
    } else {
      const int row = (tile + 2 * t + i / 2) * 8 + from / 4;
      if (token < x.count && row < m.n)
        out.store(token, row, sum(i) * (m.down * x.scale(token) * row_scale<T>(m.planes, row)));
    }
  }
}

// Fixed: tiles along k where they are known, else 0. Many: gridDim.y blocks share the tokens.
template <class T, class E, int Fixed, int WK, int U, int RT, int NT, bool Many>
__device__ __forceinline__ void skinny_block(const Matrix& m, int columns, const Tokens& x, const Result& out,
                                             int block, float* part) {
  constexpr int C = tiles_at_once(WK, RT, NT);
  static_assert(NT % C == 0);
  const int Q = Fixed ? Fixed : columns, tiles = Many ? x.tiles : NT, token_tile = Many ? blockIdx.y * NT : 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = last_pair<E>(m.n), tile = block * RT * 2;
  start_next();
  Raw raw[U][RT][2];
  auto prefetch = [&](Raw(&into)[RT][2], int q) {
#pragma unroll
    for (int t = 0; t < RT; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        into[t][h] = load_granule<T>(m.planes, Q, (tile + 2 * t < last ? tile + 2 * t : last) + h, q, lane);
  };
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (warp + u * WK < Q) prefetch(raw[u], warp + u * WK);
  wait_for_previous();
  float acc[RT][NT][4] = {};
  for (int q0 = warp; q0 < Q; q0 += U * WK) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int q = q0 + u * WK;
      if (q >= Q) break;
      Scales k[RT][2];
#pragma unroll
      for (int t = 0; t < RT; ++t)
        k[t][0] = find_scales<T>(raw[u][t][0], m.gain), k[t][1] = find_scales<T>(raw[u][t][1], m.gain);
      const uint4* here = x.x + (static_cast<size_t>(q) * 4 * tiles + token_tile) * 32;
      skinny_step<T, NT, RT, 0>(raw[u], k, here, tiles, lane, acc);
      skinny_step<T, NT, RT, 1>(raw[u], k, here, tiles, lane, acc);
      skinny_step<T, NT, RT, 2>(raw[u], k, here, tiles, lane, acc);
      skinny_step<T, NT, RT, 3>(raw[u], k, here, tiles, lane, acc);
      if (q + U * WK < Q) prefetch(raw[u], q + U * WK);
    }
  }
#pragma unroll
  for (int n = 0; n < NT; n += C) {
    if (n > 0) __syncthreads();
#pragma unroll
    for (int t = 0; t < RT; ++t)
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[((warp * RT * C + t * C + c) * 4 + i) * 32 + lane] = acc[t][n + c][i];
    __syncthreads();
    store_sums<T, E, WK, RT, C>(m, x, out, tile, token_tile + n, part);
  }
}

template <class T, class E, int Fixed, int WK, int U, int RT, int NT, bool Many>
__device__ __forceinline__ void skinny(const Matrix& m, int columns, const Tokens& x, const Result& out) {
  __shared__ float part[WK * RT * tiles_at_once(WK, RT, NT) * 128];
  skinny_block<T, E, Fixed, WK, U, RT, NT, Many>(m, columns, x, out, blockIdx.x, part);
}

// Two matrices of different formats, as in gemv.h.
template <class A, class B, class E, int Fixed, int WK, int U, int RT, int NT, bool Many>
__device__ __forceinline__ void skinny_two(const Matrix& a, const Matrix& b, int split, int column, int columns,
                                           const Tokens& x, const Result& out) {
  __shared__ float part[WK * RT * tiles_at_once(WK, RT, NT) * 128];
  const int block = blockIdx.x;
  if (block < split)
    skinny_block<A, E, Fixed, WK, U, RT, NT, Many>(a, columns, x, out, block, part);
  else
    skinny_block<B, E, Fixed, WK, U, RT, NT, Many>(b, columns, x, out.from(column), block - split, part);
}

}  // namespace fewbit
