// Attention of single tokens for every format and size, in f32: what attend_mma.h does not take (f32 pages, heads that
// are no multiple of 32 or wider than 256).
#pragma once
#include "attend.h"

namespace fewbit {

// 8 warps, 8 query heads.
template <class KF, class VF, int KD, int VD, bool fused>
__device__ __forceinline__ void attend_plain(const Attend& a) {
  constexpr int R = 8, threads = 256, own = (VD + threads - 1) / threads;
  __shared__ Inputs<R, KD, VD> in;
  __shared__ float weights[R][kPageTokens], decay[R], values[R * VD];
  __shared__ float2 sums[1][R];
  start_next();
  const Task t = find_task<R, fused>(a);
  load_turns(a, t, false, in);
  wait_for_previous();
  if (t.empty && t.piece == 0) put_zeros<VD>(a, t);
  if (t.empty || t.piece >= t.pieces) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool with_new = fused && t.is_last();
  load_inputs<threads>(a, t, with_new, in);
  if (with_new) {  // all rounds write the same bytes
    const int page = t.slot / kPageTokens, place = t.slot % kPageTokens;
    uint8_t *k = a.k_pages + page_at<KF>(page, t.group, a.kv_heads, KD),
            *v = a.v_pages + page_at<VF>(page, t.group, a.kv_heads, VD);
    for (int b = warp; b < (KD + 31) / 32; b += threads / 32) {
      const int d = b * 32 + lane;
      put_kv<KF, false>(k, place, b, lane, KD, pack_kv<KF>(d < KD ? in.k[d] : 0.0f, lane));
    }
    for (int b = warp; b < (VD + 31) / 32; b += threads / 32) {
      const int d = b * 32 + lane;
      put_kv<VF, true>(v, place, b, lane, VD, pack_kv<VF>(d < VD ? in.v[d] : 0.0f, lane));
    }
    __syncthreads();
  }
  float most = kNothing, sum = 0, acc[own][R] = {};
  for (int number = t.first_page; number <= t.last_page; ++number) {
    const int page = t.table[number], start = number * kPageTokens;
    const int begin = t.first > start ? t.first - start : 0;
    const int end = t.position - start < kPageTokens - 1 ? t.position - start + 1 : kPageTokens;
    const uint8_t *k = a.k_pages + page_at<KF>(page, t.group, a.kv_heads, KD),
                  *v = a.v_pages + page_at<VF>(page, t.group, a.kv_heads, VD);
    for (int token = warp; token < kPageTokens; token += threads / 32) {
      float dot[R] = {};
      for (int d = lane; d < KD && token >= begin && token < end; d += 32) {
        const float key = read_kv<KF, false>(k, token, d, KD);
#pragma unroll
        for (int r = 0; r < R; ++r) dot[r] += in.q[r][d] * key;
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float s = reduce_warp(dot[r], Added());
        if (lane == 0) weights[r][token] = token >= begin && token < end ? capped(s, a) : unseen();
      }
    }
    __syncthreads();
    const float s = weights[warp][lane];  // a warp a head
    const float top = Larger()(most, reduce_warp(s, Larger())), down = power_of_2(most - top),
                w = power_of_2(s - top + kLift);
    weights[warp][lane] = w;
    sum = sum * down + reduce_warp(w, Added());
    most = top;
    if (lane == 0) decay[warp] = down;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const int d = threadIdx.x + i * threads;
      if (d >= VD) continue;
#pragma unroll
      for (int r = 0; r < R; ++r) acc[i][r] *= decay[r];
      for (int token = begin; token < end; ++token) {
        const float value = read_kv<VF, true>(v, token, d, VD);
#pragma unroll
        for (int r = 0; r < R; ++r) acc[i][r] += weights[r][token] * value;
      }
    }
    __syncthreads();
  }
  if (lane == 0) sums[0][warp] = {most, sum};
#pragma unroll
  for (int i = 0; i < own; ++i)
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (threadIdx.x + i * threads < VD) values[r * VD + threadIdx.x + i * threads] = acc[i][r];
  __syncthreads();
  join_warps<VD, R, 1, VD, VD>(a, t, sums, values, 0);
  if (t.pieces > 1) join_pieces<VD>(a, t);
}

}  // namespace fewbit
