// Y = X W^T for 33 to 256 tokens, straight from packed weights: W warps of 16 rows each share a panel of NT tiles of 8
// tokens in shared memory, S stages of it. Group: products of warpgroups (warpgroup.h), else of warps; both have the
// same rows, sums and order of k. Blocks that share k are joined as in skinny_shared.h; the panels of the same rows are
// neighbours in the grid, so that the second reads weights from L2.
#pragma once
#include "skinny_shared.h"
#include "warpgroup.h"

namespace fewbit {

__device__ __forceinline__ uint4 load_matrices(uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// Values 8 s to 8 s + 7 of the granules of two row tiles times those of a panel. x: the address of a tile column, and
// its descriptor for warpgroups.
template <class T, int NT, int s, bool Group>
__device__ __forceinline__ void panel_step(const Raw (&raw)[2], const Scales (&k)[2], uint32_t x, uint64_t described,
                                           int lane, float (&acc)[NT][4]) {
  constexpr uint32_t pair = NT * core_bytes;  // two values of each granule
  uint32_t a[8];
  if constexpr (Group) {
    wait_warpgroup<1>();  // no more than two steps have their registers
    decode_fragment<T, s>(raw, k, a);
    fence_warpgroup();
    multiply_warpgroup(acc, a[0], a[1], a[2], a[3], behind(described, 4 * s * pair));
    multiply_warpgroup(acc, a[4], a[5], a[6], a[7], behind(described, (4 * s + 2) * pair));
    commit_warpgroup();
  } else {
    decode_fragment<T, s>(raw, k, a);
    const uint32_t own = x + 4 * s * pair + lane / 8 * pair + lane % 8 * 16;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 b = load_matrices(own + n * core_bytes);
      mma(acc[n], a[0], a[1], a[2], a[3], b.x, b.y);
      mma(acc[n], a[4], a[5], a[6], a[7], b.z, b.w);
    }
  }
}

// C: as in skinny_shared.h.
template <class T, class E, int Fixed, int W, int NT, int S, int C, bool Group>
__device__ __forceinline__ void panel_block(const Matrix& m, int columns, const Tokens& x, const Result& out, int block,
                                            int panel, const Shares& with) {
  constexpr int D = Group ? 2 : 1;                                                 // tile columns of a stage
  constexpr int column = 16 * NT * 8, words = D * column, per = words / (32 * W);  // of 16 bytes
  constexpr int U = T::P0 == 8 && NT > 12 ? 1 : 2;
  static_assert(words % (32 * W) == 0 && S > 1 && W <= 4 * S * D && (!Group || W % 4 == 0));
  const int Q = Fixed ? Fixed : columns, lane = threadIdx.x % 32, last = last_pair<E>(m.n);
  const int tile = (block * W + static_cast<int>(threadIdx.x) / 32) * 2, blocks = C > 0 ? C : gridDim.y;
  const int share = (Q + blocks - 1) / blocks, q0 = blockIdx.y * share;
  const int count = Q - q0 < share ? Q - q0 : share;  // may be none
  const uint32_t staged = static_cast<uint32_t>(__cvta_generic_to_shared(with.staged));
  start_next();
  Raw raw[U][2];
  auto weights = [&](Raw(&into)[2], int q) {
    if (q >= count) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) into[h] = load_granule<T>(m.planes, Q, (tile < last ? tile : last) + h, q0 + q, lane);
  };
  const int apart = x.tiles / NT * column;  // from a column of a panel to its next one
  auto stage = [&](int number) {
    const int q = number * D;
#pragma unroll
    for (int i = 0; i < per; ++i) {
      const int at = i * 32 * W + threadIdx.x, d = D > 1 ? at / column : 0;
      if (q + d < count)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(staged + (number % S * words + at) * 16),
                     "l"(x.x + (q0 + q + d) * apart + panel * column + at - d * column));
    }
    asm volatile("cp.async.commit_group;");
  };
#pragma unroll
  for (int u = 0; u < U; ++u) weights(raw[u], u);
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < S - 1; ++i) stage(i);
  float acc[1][NT][4] = {};
  auto begin = [&](int number) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S - 2) : "memory");
    if constexpr (Group) fence_shared();
    __syncthreads();
    stage(number + S - 1);
  };
  auto one = [&](Raw(&now)[2], int q) {
    const Scales k[2] = {find_scales<T>(now[0], m.gain), find_scales<T>(now[1], m.gain)};
    const uint32_t here = staged + (q / D % S * words + q % D * column) * 16;
    const uint64_t described = describe(here, NT * core_bytes);
    panel_step<T, NT, 0, Group>(now, k, here, described, lane, acc[0]);
    panel_step<T, NT, 1, Group>(now, k, here, described, lane, acc[0]);
    panel_step<T, NT, 2, Group>(now, k, here, described, lane, acc[0]);
    panel_step<T, NT, 3, Group>(now, k, here, described, lane, acc[0]);
    weights(now, q + U);
  };
  // By twos, and no products in flight from one turn to the next: else the compiler moves sums to other registers in
  // between, and lets each product wait for the one before.
#pragma unroll 1
  for (int q = 0; q < count; q += 2) {
    begin(q / D);
    one(raw[0], q);
    if (q + 1 < count) {
      if constexpr (D == 1) begin(q + 1);
      one(raw[U - 1], q + 1);
    }
    if constexpr (Group) wait_warpgroup<0>();
  }
  constexpr int cluster = has_clusters || C == 0 ? C : 1;
  if constexpr (cluster == 0 || cluster < C)
    if (!add_parts(acc, with.parts, with.tickets, reinterpret_cast<bool*>(with.staged))) return;
  constexpr int joined = cluster > 1 ? cluster : 1;
  store_shared<T, E, W, 1, NT, joined>(m, x, out, tile, lane, acc, with.staged, panel * NT);
}

template <class T, class E, int Fixed, int W, int NT, int S, int C, bool Group>
__device__ __forceinline__ void panel(const Matrix& m, int columns, const Tokens& x, const Result& out, float* parts,
                                      uint32_t* tickets) {
  extern __shared__ __align__(128) uint4 staged[];
  const int panels = x.tiles / NT, block = blockIdx.x / panels, own = blockIdx.x % panels;
  panel_block<T, E, Fixed, W, NT, S, C, Group>(m, columns, x, out, block, own, {staged, parts, tickets});
}

// Two matrices of different formats, as in gemv.h.
template <class A, class B, class E, int Fixed, int W, int NT, int S, int C, bool Group>
__device__ __forceinline__ void panel_two(const Matrix& a, const Matrix& b, int split, int column, int columns,
                                          const Tokens& x, const Result& out, float* parts, uint32_t* tickets) {
  extern __shared__ __align__(128) uint4 staged[];
  const int panels = x.tiles / NT, block = blockIdx.x / panels, own = blockIdx.x % panels;
  if (block < split)
    panel_block<A, E, Fixed, W, NT, S, C, Group>(a, columns, x, out, block, own, {staged, parts, tickets});
  else
    panel_block<B, E, Fixed, W, NT, S, C, Group>(b, columns, x, out.from(column), block - split, own,
                                                 {staged, parts, tickets});
}

}  // namespace fewbit
