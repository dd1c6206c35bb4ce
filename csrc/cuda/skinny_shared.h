// Y = X W^T for 16 to 64 tokens: W warps of RT x 16 rows share x in shared memory, S stages of it in flight; gridDim.y
// blocks share k, and their sums are added in their order: the same bits every time. Blocks of a cluster read the
// sums from each other's shared memory; others write them, and who comes last adds them.
#pragma once
#include "fragments.h"

#if __CUDA_ARCH__ >= 900
#define FEWBIT_CLUSTER(count) __cluster_dims__(1, count, 1)
#else
#define FEWBIT_CLUSTER(count)
#endif

namespace fewbit {

constexpr bool has_clusters = __CUDA_ARCH__ >= 900;

template <class T, int NT, int RT, int s>
__device__ __forceinline__ void shared_step(const Raw (&raw)[RT][2], const Scales (&k)[RT][2], const uint4* x, int lane,
                                            float (&acc)[RT][NT][4]) {
  uint4 b[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) b[n] = x[(s * NT + n) * 32 + lane];
#pragma unroll
  for (int t = 0; t < RT; ++t) multiply_fragment<T, NT, s>(raw[t], k[t], b, acc[t]);
}

__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// 16 bytes of the shared memory of another block of the cluster, at the place that `own` has in ours.
__device__ __forceinline__ float4 load_shared(const float4* own, int block) {
  float4 v = {};
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
#endif
  return v;
}

// Adds what the blocks of a row found; false: another block comes after this one.
template <int RT, int NT>
__device__ __forceinline__ bool add_parts(float (&acc)[RT][NT][4], float* parts, uint32_t* tickets, bool* is_last) {
  constexpr int each = RT * NT * 4;
  const size_t size = static_cast<size_t>(gridDim.x) * blockDim.x * each;
  float* own = parts + (static_cast<size_t>(blockIdx.x) * each) * blockDim.x + threadIdx.x;
#pragma unroll
  for (int e = 0; e < each; ++e) __stcg(own + blockIdx.y * size + e * blockDim.x, acc[e / (4 * NT)][e / 4 % NT][e % 4]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *is_last = atomicInc(tickets + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
  __syncthreads();
  if (!*is_last) return false;
  __threadfence();
#pragma unroll
  for (int e = 0; e < each; ++e) acc[e / (4 * NT)][e / 4 % NT][e % 4] = 0;
#pragma unroll(each > 32 ? 1 : 4)
  for (int part = 0; part < static_cast<int>(gridDim.y); ++part)
#pragma unroll
    for (int e = 0; e < each; ++e) acc[e / (4 * NT)][e / 4 % NT][e % 4] += __ldcg(own + part * size + e * blockDim.x);
  return true;
}

// What a block of W warps needs to share k with others.
struct Shares {
  uint4* staged;
  float* parts;
  uint32_t* tickets;
};

// Each block of a cluster of C adds and stores its share of the sums, which all of them have in shared memory; C is 1
// for a block that has them all. The first token tile is `first`.
template <class T, class E, int W, int RT, int NT, int C>
__device__ __forceinline__ void store_shared(const Matrix& m, const Tokens& x, const Result& out, int tile, int lane,
                                             const float (&acc)[RT][NT][4], uint4* staged, int first = 0) {
  float4* sums = reinterpret_cast<float4*>(staged);
  __syncthreads();  // x has been read
#pragma unroll
  for (int e = 0; e < RT * NT; ++e) {
    const float (&v)[4] = acc[e / NT][e % NT];
    sums[e * 32 * W + threadIdx.x] = {v[0], v[1], v[2], v[3]};
  }
  if constexpr (C > 1) sync_cluster();
#pragma unroll 1
  for (int t = 0; t < RT; ++t) {
    const PairRows<T, E> rows(m, x, out, tile + 2 * t, lane / 4);
#pragma unroll(RT > 1 ? 1 : C > 1 ? 2 : 4)
    for (int n = C > 1 ? blockIdx.y : 0; n < NT; n += C) {
      const float4* own = sums + (t * NT + n) * 32 * W + threadIdx.x;
      float4 v[C], total = {};
#pragma unroll
      for (int block = 0; block < C; ++block) v[block] = C > 1 ? load_shared(own, block) : *own;
#pragma unroll
      for (int block = 0; block < C; ++block)
        total.x += v[block].x, total.y += v[block].y, total.z += v[block].z, total.w += v[block].w;
      const int token = (first + n) * 8 + lane % 4 * 2;
      const float2 up = x.scale_two(token);
      rows.store(token, up.x, total.x, total.z);
      rows.store(token + 1, up.y, total.y, total.w);
    }
  }
  if constexpr (C > 1) sync_cluster();  // nobody leaves while its sums are still read
}

// C: blocks of a cluster that share k; 1: nobody shares it; 0: gridDim.y blocks that meet in the memory of the GPU.
template <class T, class E, int Fixed, int W, int RT, int NT, int S, int C>
__device__ __forceinline__ void shared_block(const Matrix& m, int columns, const Tokens& x, const Result& out,
                                             int block, const Shares& with) {
  constexpr int words = 4 * NT * 32, per = words / (32 * W);
  static_assert(words % (32 * W) == 0 && RT * W <= 4 * S);
  const int Q = Fixed ? Fixed : columns, lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = last_pair<E>(m.n);
  const int tile = (block * W + warp) * RT * 2, blocks = C > 0 ? C : gridDim.y;
  const int share = (Q + blocks - 1) / blocks, q0 = blockIdx.y * share;
  const int count = Q - q0 < share ? Q - q0 : share;  // may be none
  start_next();
  Raw raw[2][RT][2];
  auto weights = [&](Raw(&into)[RT][2], int q) {
    if (q >= count) return;
#pragma unroll
    for (int t = 0; t < RT; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        into[t][h] = load_granule<T>(m.planes, Q, (tile + 2 * t < last ? tile + 2 * t : last) + h, q0 + q, lane);
  };
  auto stage = [&](int q) {
    if (q < count)
#pragma unroll
      for (int i = 0; i < per; ++i) {
        const int at = i * 32 * W + threadIdx.x;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         static_cast<uint32_t>(__cvta_generic_to_shared(with.staged + q % S * words + at))),
                     "l"(x.x + static_cast<size_t>(q0 + q) * words + at));
      }
    asm volatile("cp.async.commit_group;");
  };
  weights(raw[0], 0);
  weights(raw[1], 1);
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < S - 1; ++i) stage(i);
  float acc[RT][NT][4] = {};
  auto one = [&](Raw(&now)[RT][2], int q) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S - 2) : "memory");
    __syncthreads();
    stage(q + S - 1);
    Scales k[RT][2];
#pragma unroll
    for (int t = 0; t < RT; ++t)
      k[t][0] = find_scales<T>(now[t][0], m.gain), k[t][1] = find_scales<T>(now[t][1], m.gain);
    const uint4* here = with.staged + q % S * words;
    shared_step<T, NT, RT, 0>(now, k, here, lane, acc);
    shared_step<T, NT, RT, 1>(now, k, here, lane, acc);
    shared_step<T, NT, RT, 2>(now, k, here, lane, acc);
    shared_step<T, NT, RT, 3>(now, k, here, lane, acc);
    weights(now, q + 2);
  };
  for (int q = 0; q < count; q += 2) {
    one(raw[0], q);
    if (q + 1 < count) one(raw[1], q + 1);
  }
  constexpr int cluster = has_clusters || C == 0 ? C : 1;
  if constexpr (cluster == 0 || cluster < C)
    if (!add_parts(acc, with.parts, with.tickets, reinterpret_cast<bool*>(with.staged))) return;
  store_shared<T, E, W, RT, NT, (cluster > 1 ? cluster : 1)>(m, x, out, tile, lane, acc, with.staged);
}

template <class T, class E, int Fixed, int W, int RT, int NT, int S, int C>
__device__ __forceinline__ void skinny_shared(const Matrix& m, int columns, const Tokens& x, const Result& out,
                                              float* parts, uint32_t* tickets) {
  __shared__ uint4 staged[S * 4 * NT * 32];
  shared_block<T, E, Fixed, W, RT, NT, S, C>(m, columns, x, out, blockIdx.x, {staged, parts, tickets});
}

// Two matrices of different formats, as in gemv.h.
template <class A, class B, class E, int Fixed, int W, int RT, int NT, int S, int C>
__device__ __forceinline__ void shared_two(const Matrix& a, const Matrix& b, int split, int column, int columns,
                                           const Tokens& x, const Result& out, float* parts, uint32_t* tickets) {
  __shared__ uint4 staged[S * 4 * NT * 32];
  const int block = blockIdx.x;
  if (block < split)
    shared_block<A, E, Fixed, W, RT, NT, S, C>(a, columns, x, out, block, {staged, parts, tickets});
  else
    shared_block<B, E, Fixed, W, RT, NT, S, C>(b, columns, x, out.from(column), block - split,
                                               {staged, parts, tickets});
}

}  // namespace fewbit
