// K and V of new tokens into pages: rotated by their positions, K also by a Hadamard matrix where the cache asks for
// it, packed with the rounding of formats/encode.py.
#pragma once
#include "kv_pages.h"

namespace fewbit {

// Cosine and sine of each pair at each position, [position][pair], or of each row of the step, [row][pair] (`by_row`);
// no table: nothing is rotated.
struct RopeAt {
  const float2* table;
  int pairs;
  bool neox, by_row;

  __device__ __forceinline__ const float2* turns(int row, int position) const {
    return table + static_cast<size_t>(by_row ? row : position) * pairs;
  }
};

// Pair i of a head, of those that are rotated, then of the others: where its two values are.
__device__ __forceinline__ int2 pair_places(int i, const RopeAt& rope) {
  const bool apart = i < rope.pairs && rope.neox;
  return {apart ? i : 2 * i, apart ? i + rope.pairs : 2 * i + 1};
}
__device__ __forceinline__ float2 load_pair(const float* x, int i, int dims, const RopeAt& rope) {
  const int2 at = pair_places(i, rope);
  return {x[at.x], at.y < dims ? x[at.y] : 0.0f};
}
// Rotated by its turn. Products are rounded before they are added, as NumPy does it.
__device__ __forceinline__ void put_rotated(float2 v, float* out, int i, int dims, const RopeAt& rope,
                                            const float2* turns) {
  const int2 at = pair_places(i, rope);
  const bool rotated = i < rope.pairs;
  const float2 turn = rotated ? turns[i] : float2{1, 0};
  out[at.x] = rotated ? __fsub_rn(__fmul_rn(v.x, turn.x), __fmul_rn(v.y, turn.y)) : v.x;
  if (at.y < dims) out[at.y] = rotated ? __fadd_rn(__fmul_rn(v.x, turn.y), __fmul_rn(v.y, turn.x)) : v.y;
}

// A row in shared memory, by a warp: blocks of the largest power of two that divides dims, times an orthogonal matrix.
__device__ __forceinline__ void hadamard(float* row, int dims, int lane) {
  const int size = dims & -dims;
#pragma unroll 1
  for (int h = 1; h < size; h *= 2) {
    __syncwarp();
    for (int i = lane; i < dims / 2; i += 32) {
      const int at = i / h * 2 * h + i % h;
      const float a = row[at], b = row[at + h];
      row[at] = a + b, row[at + h] = a - b;
    }
  }
  __syncwarp();
  const float down = 1.0f / sqrtf(static_cast<float>(size));
  for (int i = lane; i < dims; i += 32) row[i] *= down;
  __syncwarp();
}

struct NewRows {
  const float *k, *v;
  int k_stride, v_stride;
};

// 32 tokens of a head: gridDim (token / 32, kv_heads), 16 warps. K goes straight to its page; V through shared memory,
// a block of 32 dims after the other, so that tokens of a page are written side by side.
template <class KF, class VF, int KD, int VD>
__device__ __forceinline__ void write_kv(const NewRows& x, const RopeAt& rope, bool rotate, uint8_t* k_pages,
                                         uint8_t* v_pages, const int* slots, const int* positions, int tokens,
                                         int kv_heads) {
  constexpr int warps = 16;
  __shared__ float row[warps][KD];
  __shared__ uint32_t codes[32][33];
  __shared__ uint16_t scales[32];
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, first = blockIdx.x * 32;
#pragma unroll 1
  for (int i = warp; i < 32 && first + i < tokens; i += warps) {
    const int token = first + i, slot = slots[token];
    if (slot < 0) continue;
    const float* k = x.k + static_cast<size_t>(token) * x.k_stride + head * KD;
    const float2* at = rope.turns(token, rope.table ? positions[token] : 0);
    for (int p = lane; p < (KD + 1) / 2; p += 32) put_rotated(load_pair(k, p, KD, rope), row[warp], p, KD, rope, at);
    __syncwarp();
    if (rotate) hadamard(row[warp], KD, lane);
    uint8_t* page = k_pages + page_at<KF>(slot / kPageTokens, head, kv_heads, KD);
#pragma unroll 1
    for (int b = 0; b < (KD + 31) / 32; ++b) {
      const int d = b * 32 + lane;
      put_kv<KF, false>(page, slot % kPageTokens, b, lane, KD, pack_kv<KF>(d < KD ? row[warp][d] : 0.0f, lane));
    }
    __syncwarp();
  }
  constexpr int count = codes_of_block<VF>;  // codes of a block
  const int own = first + lane < tokens ? slots[first + lane] : -1;
  uint8_t* page = v_pages + page_at<VF>(own < 0 ? 0 : own / kPageTokens, head, kv_heads, VD);
#pragma unroll 1
  for (int b = 0; b < (VD + 31) / 32; ++b) {
    for (int i = warp; i < 32; i += warps) {
      const int token = first + i, d = b * 32 + lane;
      const bool real = token < tokens && d < VD;
      const PackedKv v = pack_kv<VF>(real ? x.v[static_cast<size_t>(token) * x.v_stride + head * VD + d] : 0.0f, lane);
      codes[lane][i] = v.code;
      if (lane == 0) scales[i] = v.scale;
    }
    __syncthreads();
    for (int i = warp; i < count; i += warps) {  // lanes are tokens
      const int code = b * count + i;
      if (own < 0 || code >= codes_of<VF>(VD)) continue;
      put_code<VF>(page + code_at<VF, true>(own % kPageTokens, code, VD), codes[i][lane]);
    }
    if (is_quantized<VF> && warp == 0 && own >= 0)
      *reinterpret_cast<uint16_t*>(page + scale_at<VF, true>(own % kPageTokens, b, VD)) = scales[lane];
    __syncthreads();
  }
}

}  // namespace fewbit
