// Attention of single tokens, each of which sees positions up to its own: what both kernels share. Rows are tokens; a
// block takes a row, up to 16 query heads of a KV head, and a piece of the context. Pieces have the same places
// whatever else is in the step, sums are made in a fixed order, so a row has the same bits alone and beside others.
//
// With `fused` the row's own K and V are not in the pages yet: the kernel rotates, packs and writes them, and takes
// them for its own use as they were packed.
#pragma once
#include "activations.h"
#include "kv_write.h"

namespace fewbit {

constexpr float kLog2e = 1.44269504f;
constexpr float kNothing = -1e30f;  // the greatest score of no tokens
constexpr float kLift = 6;  // weights are 2^6 at most, so that small ones times small scales are no subnormal f16

// A score that has no weight.
__device__ __forceinline__ float unseen() { return __uint_as_float(0xff800000u); }

__device__ __forceinline__ float power_of_2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

enum Form { kRows, kInt8, kFragments, kPanels };

struct Attend {
  const float *q, *k, *v;
  int q_stride, k_stride, v_stride;
  RopeAt rope;
  bool rotate;
  uint8_t *k_pages, *v_pages;
  const int *tables, *starts, *slots, *positions, *sequences, *lengths;
  const float* sinks;
  float scale, softcap;
  int window, kv_heads, q_heads, piece, first_row;
  float* parts;  // [row][head][piece][dim], then greatest score and sum of weights
  int* tickets;  // [row][blockIdx.y], 0 before and after
  void* out;
  int2* xm;
  int form, out_stride;  // floats of a row, or tiles of 8 tokens
};

// The first position that a token sees, up to its own. A window below 0 is a chunk of so many tokens.
__device__ __forceinline__ int first_seen(int position, int window) {
  if (window < 0) return position / -window * -window;
  return window && position >= window ? position + 1 - window : 0;
}

// What a block does.
struct Task {
  int row, group, head, heads;  // its first query head, and how many
  int position, first, slot;    // the first position that it sees
  int piece, pieces;            // its own, counted from the first that is seen
  int first_page, last_page;
  const int* table;
  bool empty;

  // Whether the row's own token is in this piece, and must be made.
  __device__ __forceinline__ bool is_last() const { return piece == pieces - 1; }
};

// R: query heads of a block; blockIdx: piece, KV head and round, row.
template <int R, bool fused>
__device__ __forceinline__ Task find_task(const Attend& a) {
  Task t;
  const int each = a.q_heads / a.kv_heads, rounds = (each + R - 1) / R, round = blockIdx.y % rounds;
  t.row = a.first_row + blockIdx.z;
  t.group = blockIdx.y / rounds;
  t.head = t.group * each + round * R;
  t.heads = each - round * R < R ? each - round * R : R;
  const int sequence = a.sequences[t.row];
  t.slot = fused ? a.slots[t.row] : 0;
  t.position = a.positions[t.row];
  t.empty = a.lengths[sequence] == 0 || t.slot < 0;
  t.table = a.tables + a.starts[sequence];
  t.first = first_seen(t.position, a.window);
  t.piece = blockIdx.x;
  t.pieces = t.empty ? 1 : t.position / a.piece - t.first / a.piece + 1;
  const int begin = (t.first / a.piece + t.piece) * a.piece, end = begin + a.piece - 1;
  t.first_page = (t.first > begin ? t.first : begin) / kPageTokens;
  t.last_page = (t.position < end ? t.position : end) / kPageTokens;
  return t;
}

__device__ __forceinline__ float capped(float s, const Attend& a) {
  s *= a.scale;
  if (a.softcap > 0) s = a.softcap * (1.0f - 2.0f / (__expf(2.0f * s / a.softcap) + 1.0f));
  return s * kLog2e;
}

// Queries, and K and V of the row, rotated, in shared memory.
template <int R, int KD, int VD>
struct Inputs {
  float q[R][KD + 4];
  float k[KD], v[VD];
  float2 turn[KD / 2 + 1];
};

// Before the wait, and before pages are asked for: what comes behind them would wait for them. Those that another
// kernel of the step has gathered are loaded after it.
template <int R, int KD, int VD>
__device__ __forceinline__ void load_turns(const Attend& a, const Task& t, bool is_gathered, Inputs<R, KD, VD>& in) {
  if (a.rope.table && !t.empty && a.rope.by_row == is_gathered)
    for (int i = threadIdx.x; i < a.rope.pairs; i += blockDim.x) in.turn[i] = a.rope.turns(t.row, t.position)[i];
}

// After it: T threads ask for all that they need before they use any of it. Ends with a barrier.
template <int T, int R, int KD, int VD>
__device__ __forceinline__ void load_inputs(const Attend& a, const Task& t, bool with_new, Inputs<R, KD, VD>& in) {
  constexpr int half = (KD + 1) / 2, queries = R * half, keys = queries + half, values = keys + (VD + 1) / 2;
  constexpr int each = (values + T - 1) / T;
  const float* q = a.q + static_cast<size_t>(t.row) * a.q_stride + t.head * KD;
  const float* k = a.k + static_cast<size_t>(t.row) * a.k_stride + t.group * KD;
  const float* v = a.v + static_cast<size_t>(t.row) * a.v_stride + t.group * VD;
  load_turns(a, t, true, in);
  float2 x[each];
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int i = threadIdx.x + j * T;
    x[j] = {0, 0};
    if (i < t.heads * half)
      x[j] = load_pair(q + i / half * KD, i % half, KD, a.rope);
    else if (i >= queries && i < keys && with_new)
      x[j] = load_pair(k, i - queries, KD, a.rope);
    else if (i >= keys && i < values && with_new)
      x[j] = load_pair(v, i - keys, VD, {});
  }
  __syncthreads();  // turns are there
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int i = threadIdx.x + j * T;
    if (i < queries)
      put_rotated(x[j], in.q[i / half], i % half, KD, a.rope, in.turn);
    else if (i < keys)
      put_rotated(x[j], in.k, i - queries, KD, a.rope, in.turn);
    else if (i < values)
      put_rotated(x[j], in.v, i - keys, VD, {}, in.turn);
  }
  __syncthreads();
  if (!a.rotate) return;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < t.heads + with_new; i += blockDim.x / 32)
    hadamard(i < t.heads ? in.q[i] : in.k, KD, lane);
  __syncthreads();
}

// One value of the result, in each lane that has one: 32 values of a head from `dim` on.
template <int VD>
__device__ __forceinline__ void put_result(const Attend& a, int row, int head, int dim, int lane, float v) {
  const int at = head * VD + dim + lane;
  const bool real = dim + lane < VD;
  if (a.form == kInt8) {
    quantize_granule(v, lane, static_cast<int8_t*>(a.out) + (at - lane), a.xm + (at - lane) / 32);
  } else if (a.form == kFragments || a.form == kPanels) {
    const size_t to = a.form == kPanels ? panel_place(at, row, a.out_stride) : fragment_place(at, row, a.out_stride);
    if (real) static_cast<uint16_t*>(a.out)[to] = to_finite_half(v);
  } else if (real) {
    static_cast<float*>(a.out)[static_cast<size_t>(row) * a.out_stride + at] = v;
  }
}

template <int VD>
__device__ __forceinline__ void put_zeros(const Attend& a, const Task& t) {
  constexpr int blocks = (VD + 31) / 32;
  for (int i = threadIdx.x / 32; i < t.heads * blocks; i += blockDim.x / 32)
    put_result<VD>(a, t.row, t.head + i / blocks, i % blocks * 32, threadIdx.x % 32, 0.0f);
}

// The greatest score and the sum of weights with the sink, of the query head.
__device__ __forceinline__ float with_sink(const Attend& a, int head, float most, float sum, float v) {
  if (a.sinks) {
    const float sink = a.sinks[head] * kLog2e, top = sink > most ? sink : most;
    const float down = power_of_2(most - top);
    sum = sum * down + power_of_2(sink - top + kLift), v *= down;
  }
  return v / sum;
}

// Written by other blocks of this kernel: past L1.
__device__ __forceinline__ float load_part(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}

template <int VD>
__device__ __forceinline__ float* part_at(const Attend& a, const Task& t, int head) {
  return a.parts + (static_cast<size_t>(blockIdx.z) * a.q_heads + head) * gridDim.x * VD;
}
template <int VD>
__device__ __forceinline__ float* sums_at(const Attend& a, const Task& t, int head) {
  const size_t parts = static_cast<size_t>(gridDim.z) * a.q_heads * gridDim.x * VD;
  return a.parts + parts + (static_cast<size_t>(blockIdx.z) * a.q_heads + head) * gridDim.x * 2;
}

// The block that comes last adds the pieces up, in their order: a warp those of 64 dims of a head.
template <int VD>
__device__ __forceinline__ void join_pieces(const Attend& a, const Task& t) {
  __shared__ bool last;
  __syncthreads();  // all of the block is written
  if (threadIdx.x == 0) {
    __threadfence();
    int* ticket = a.tickets + blockIdx.z * gridDim.y + blockIdx.y;
    last = atomicAdd(ticket, 1) == t.pieces - 1;
    if (last) *ticket = 0;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  constexpr int each = VD > 32 ? 2 : 1, blocks = (VD + 32 * each - 1) / (32 * each);
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < t.heads * blocks; i += blockDim.x / 32) {
    const int head = t.head + i / blocks, dim = i % blocks * 32 * each;
    const float *sums = sums_at<VD>(a, t, head), *parts = part_at<VD>(a, t, head);
    float most = kNothing, sum = 0, v[each] = {};
    for (int first = 0; first < t.pieces; first += 32) {
      const int own = first + lane;
      const float top = own < t.pieces ? load_part(sums + 2 * own) : kNothing;
      const float weights = own < t.pieces ? load_part(sums + 2 * own + 1) : 0.0f;
      const float before = most;
      most = reduce_warp(Larger()(most, top), Larger());
      const float down = power_of_2(before - most), factor = power_of_2(top - most);
      sum = sum * down + reduce_warp(weights * factor, Added());
#pragma unroll
      for (int j = 0; j < each; ++j) v[j] *= down;
      const int count = t.pieces - first < 32 ? t.pieces - first : 32;
#pragma unroll 8
      for (int p = 0; p < count; ++p) {
        const float part = __shfl_sync(~0u, factor, p);
#pragma unroll
        for (int j = 0; j < each; ++j) {
          const int at = dim + 32 * j + lane;
          v[j] += load_part(parts + static_cast<size_t>(first + p) * VD + (at < VD ? at : 0)) * part;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < each; ++j)
      if (dim + 32 * j < VD) put_result<VD>(a, t.row, head, dim + 32 * j, lane, with_sink(a, head, most, sum, v[j]));
  }
}

// What the warps of a block (or the block as one) found of its heads, [W][R] greatest scores and sums of weights, and
// [W][R] rows of `C` dims from `dim` on, `stride` apart -> the result, or a part of it.
template <int VD, int R, int W, int C, int stride>
__device__ __forceinline__ void join_warps(const Attend& a, const Task& t, const float2 (&sums)[W][R],
                                           const float* values, int dim) {
  constexpr int blocks = (C + 31) / 32;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < t.heads * blocks; i += blockDim.x / 32) {
    const int r = i / blocks, at = i % blocks * 32, head = t.head + r;
    if (dim + at >= VD) continue;
    const float2 own = sums[lane % W][r];
    float most = own.x;
#pragma unroll
    for (int s = 1; s < W; s *= 2) most = Larger()(most, __shfl_xor_sync(~0u, most, s));
    const float factor = power_of_2(own.x - most);
    float sum = own.y * factor, v = 0;
#pragma unroll
    for (int s = 1; s < W; s *= 2) sum += __shfl_xor_sync(~0u, sum, s);
#pragma unroll
    for (int w = 0; w < W; ++w)
      v += values[(w * R + r) * stride + (at + lane < C ? at + lane : 0)] * __shfl_sync(~0u, factor, w);
    if (t.pieces == 1) {
      put_result<VD>(a, t.row, head, dim + at, lane, with_sink(a, head, most, sum, v));
      continue;
    }
    if (dim + at + lane < VD) part_at<VD>(a, t, head)[static_cast<size_t>(t.piece) * VD + dim + at + lane] = v;
    if (lane == 0 && dim + at == 0) {
      float* to = sums_at<VD>(a, t, head) + 2 * t.piece;
      to[0] = most, to[1] = sum;
    }
  }
}

}  // namespace fewbit
