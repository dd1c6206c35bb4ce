// Attention of prompts by mma over tiles of `gather_kv.h`: online softmax, K and V tiles in a ring of shared memory.
//
// A block takes W * RT * 16 rows of one KV head. A row is a token and one of the `group` query heads that share the KV
// head, so that few tokens fill a block too. Tiles are taken in order of keys, and one that a row does not see changes
// nothing of it, not a bit: a row's result depends on what it sees alone.
#pragma once
#include "fragments.h"
#include "gather_kv.h"

namespace fewbit {

constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Left>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// Queries as they come: f32 rows, to be rotated by position (`rope`: cosine and sine of [position][pair], or of
// [row][pair]) and as K was in its pages.
struct PromptQueries {
  const float* rows;
  int stride, dim, heads, group;
  const float2* rope;  // none: q was rotated before
  int pairs, neox, by_row;
};
struct PromptResult {
  void* rows;
  int stride, dim, width;  // dim: of V; columns from heads * dim to `width` become zeros
};
struct PromptLogits {
  float scale, softcap;
  const float* sinks;
};

// Sizes of a block. KD, VD: dims of K and of the part of V, multiples of 16; N keys a tile; S tiles in shared memory.
template <int KD_, int VD_, int N_, int W_, int RT_, int S_>
struct PromptShape {
  static constexpr int KD = KD_, VD = VD_, N = N_, W = W_, RT = RT_, S = S_;
  static constexpr int threads = 32 * W, rows = 16 * RT * W;
  static constexpr int k_chunks = KD / 8, v_chunks = N / 8;  // of a row of a tile
  static constexpr int q_bytes = rows * KD * 2, slot_bytes = N * (KD > VD ? KD : VD) * 2;
};

// One row of q, of which a lane has every 32nd value. `turn`: its row of the table.
template <int J>
__device__ __forceinline__ void load_query(const PromptQueries& in, const float* x, int turn, float (&v)[J]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < J; ++j) v[j] = lane + 32 * j < in.dim ? x[lane + 32 * j] : 0;
  if (!in.rope) return;
  const float2* turns = in.rope + static_cast<size_t>(turn) * in.pairs;
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const int d = lane + 32 * j;
    if (d >= 2 * in.pairs) continue;
    const bool is_second = in.neox ? d >= in.pairs : d % 2;
    const int other = in.neox ? (is_second ? d - in.pairs : d + in.pairs) : d ^ 1;
    const int pair = in.neox ? (is_second ? other : d) : d / 2;
    const float2 t = turns[pair];
    v[j] = is_second ? x[other] * t.y + v[j] * t.x : v[j] * t.x - x[other] * t.y;
  }
}

// Hadamard rotation in blocks of H values.
template <int H, int J>
__device__ __forceinline__ void rotate_query(float (&v)[J]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < (H < 32 ? H : 32); step *= 2)
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const float other = __shfl_xor_sync(~0u, v[j], step);
      v[j] = lane & step ? other - v[j] : v[j] + other;
    }
#pragma unroll
  for (int step = 1; step < H / 32; step *= 2)
#pragma unroll
    for (int j = 0; j < J; ++j)
      if (!(j & step) && j + step < J) {
        const float a = v[j], b = v[j + step];
        v[j] = a + b, v[j + step] = a - b;
      }
  const float scale = rsqrtf(static_cast<float>(H));
#pragma unroll
  for (int j = 0; j < J; ++j) v[j] *= scale;
}

// Four values of a row of q from d on, rotated; pairs are whole: their number is a multiple of 4.
__device__ __forceinline__ float4 load_four(const PromptQueries& in, const float* x, int turn, int d) {
  if (d >= in.dim) return {};
  const float4 v = *reinterpret_cast<const float4*>(x + d);
  if (!in.rope || d >= 2 * in.pairs) return v;
  const float2* turns = in.rope + static_cast<size_t>(turn) * in.pairs;
  if (!in.neox) {
    const float4 t = *reinterpret_cast<const float4*>(turns + d / 2);
    return {v.x * t.x - v.y * t.y, v.x * t.y + v.y * t.x, v.z * t.z - v.w * t.w, v.z * t.w + v.w * t.z};
  }
  const bool is_second = d >= in.pairs;
  const int other = is_second ? d - in.pairs : d + in.pairs;
  const float4 w = *reinterpret_cast<const float4*>(x + other);
  const float4* t = reinterpret_cast<const float4*>(turns + (is_second ? other : d));
  const float4 a = t[0], b = t[1];
  const float sign = is_second ? 1.0f : -1.0f;
  return {v.x * a.x + sign * (w.x * a.y), v.y * a.z + sign * (w.y * a.w), v.z * b.x + sign * (w.z * b.y),
          v.w * b.z + sign * (w.w * b.w)};
}

// The rows of q of a block to shared memory, and the position of each; rows behind the last one are like it. A warp
// takes some rows at once: four values a lane where they lie so that they can be loaded together, else one.
template <class B, int H>
struct QueryLoader {
  static constexpr int J = (B::KD + 31) / 32, V = (B::KD + 127) / 128;
  const PromptQueries& in;
  const Prompt& p;
  int kv_head, first;
  uint8_t* q;
  int* positions;

  __device__ __forceinline__ int place(int r) const {
    const int last = p.count * in.group - 1;
    return first + r < last ? first + r : last;
  }
  __device__ __forceinline__ int position(int r) const { return p.position + place(r) / in.group; }
  __device__ __forceinline__ int turn(int r) const { return (in.by_row ? p.row : p.position) + place(r) / in.group; }
  __device__ __forceinline__ const float* row(int r) const {
    const int head = kv_head * in.group + place(r) % in.group;
    return in.rows + static_cast<size_t>(p.row + place(r) / in.group) * in.stride + head * in.dim;
  }
  __device__ __forceinline__ bool in_fours() const {
    const bool whole = in.dim % 4 == 0 && in.stride % 4 == 0 && in.pairs % 4 == 0;
    return H == 0 && whole && (reinterpret_cast<uintptr_t>(in.rows) | reinterpret_cast<uintptr_t>(in.rope)) % 16 == 0;
  }

  __device__ __forceinline__ void fours() const {
    constexpr int at_once = V == 1 ? 8 : V <= 3 ? 4 : 1;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32 * at_once; r < B::rows; r += B::W * at_once) {
      float4 v[at_once][V];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int j = 0; j < V; ++j) v[i][j] = load_four(in, row(r + i), turn(r + i), 4 * lane + 128 * j);
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const int d = 4 * lane + 128 * j, chunk = swizzled<B::k_chunks>(r + i, d / 8);
          if (d < B::KD)
            reinterpret_cast<uint2*>(q)[((r + i) * B::k_chunks + chunk) * 2 + d / 4 % 2] = {
                pack_half2(v[i][j].x, v[i][j].y), pack_half2(v[i][j].z, v[i][j].w)};
        }
    }
  }
  __device__ __forceinline__ void ones() const {
    constexpr int at_once = J <= 4 ? (H > 0 ? 2 : 4) : J <= 8 && H == 0 ? 2 : 1;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32 * at_once; r < B::rows; r += B::W * at_once) {
      float v[at_once][J];
#pragma unroll
      for (int i = 0; i < at_once; ++i) load_query(in, row(r + i), turn(r + i), v[i]);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if constexpr (H > 0) rotate_query<H>(v[i]);
#pragma unroll
        for (int j = 0; j < J; ++j) {
          const int d = lane + 32 * j;
          if (d >= B::KD) continue;
          const int chunk = swizzled<B::k_chunks>(r + i, d / 8);
          reinterpret_cast<uint16_t*>(q)[((r + i) * B::k_chunks + chunk) * 8 + d % 8] =
              static_cast<uint16_t>(pack_half2(v[i][j], 0));
        }
      }
    }
  }
  __device__ __forceinline__ void load() const {
    for (int r = threadIdx.x; r < B::rows; r += B::threads) positions[r] = position(r);
    if (in_fours())
      fours();
    else
      ones();
  }
};

// Address of what a lane names to `load_matrices`: rows `row` + 0 to 15 of a tile, chunks `chunk` and `chunk` + 1.
// Matrices follow by rows then chunks (of A), or by chunks then rows (of B).
template <int C, bool IsA>
__device__ __forceinline__ uint32_t matrix_offset(int lane, int row, int chunk) {
  const int matrix = lane / 8, down = IsA ? matrix % 2 : matrix / 2, right = IsA ? matrix / 2 : matrix % 2;
  const int r = row + 8 * down + lane % 8;
  return (r * C + swizzled<C>(8 * down + lane % 8, chunk + right)) * 16;
}

// Logits of a warp's rows and a tile of keys.
template <class B>
__device__ __forceinline__ void multiply_keys(uint32_t q, uint32_t k, float (&s)[B::RT][B::N / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < B::RT; ++t)
#pragma unroll
    for (int n = 0; n < B::N / 8; ++n) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
#pragma unroll
  for (int d = 0; d < B::KD / 16; ++d) {
    uint32_t a[B::RT][4];
#pragma unroll
    for (int t = 0; t < B::RT; ++t) load_matrices(a[t], q + matrix_offset<B::k_chunks, true>(lane, 16 * t, 2 * d));
#pragma unroll
    for (int n = 0; n < B::N / 8; n += 2) {
      uint32_t b[4];
      load_matrices(b, k + matrix_offset<B::k_chunks, false>(lane, 8 * n, 2 * d));
#pragma unroll
      for (int t = 0; t < B::RT; ++t) {
        mma(s[t][n], a[t][0], a[t][1], a[t][2], a[t][3], b[0], b[1]);
        mma(s[t][n + 1], a[t][0], a[t][1], a[t][2], a[t][3], b[2], b[3]);
      }
    }
  }
}

// Adds weights times the values of a tile.
template <class B>
__device__ __forceinline__ void add_values(const float (&s)[B::RT][B::N / 8][4], uint32_t v,
                                           float (&o)[B::RT][B::VD / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < B::N / 8; n += 2) {
    uint32_t a[B::RT][4];
#pragma unroll
    for (int t = 0; t < B::RT; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[t][i] = pack_half2(s[t][n + i / 2][i % 2 * 2], s[t][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int d = 0; d < B::VD / 8; d += 2) {
      uint32_t b[4];
      load_matrices(b, v + matrix_offset<B::v_chunks, false>(lane, 8 * d, n));
#pragma unroll
      for (int t = 0; t < B::RT; ++t) {
        mma(o[t][d], a[t][0], a[t][1], a[t][2], a[t][3], b[0], b[1]);
        mma(o[t][d + 1], a[t][0], a[t][1], a[t][2], a[t][3], b[2], b[3]);
      }
    }
  }
}

// c tanh(logit / c), in units of log2.
template <int RT, int NT>
__device__ __forceinline__ void cap_logits(float (&s)[RT][NT][4], float scale, float softcap) {
  const float inner = 2 * kLog2e * scale / softcap, outer = softcap * kLog2e;
#pragma unroll
  for (int t = 0; t < RT; ++t)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][n][i] = outer * (1 - 2 * inverse_fast(exp2_fast(s[t][n][i] * inner) + 1));
}

// Hides keys that a row does not see; `last` is the last key of the sequence.
template <int RT, int NT, bool HasSpans>
__device__ __forceinline__ void mask_keys(float (&s)[RT][NT][4], const int* positions, int key, int last,
                                          const Sight<HasSpans>& sight) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < RT; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int position = positions[16 * t + 8 * h + lane / 4], end = sight.last(position);
      const int from = sight.first(position) - key - lane % 4 * 2, to = (end < last ? end : last) - key - lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2 * NT; ++i) {
        const int at = i / 2 * 8 + i % 2;
        if (at < from || at > to) s[t][i / 2][2 * h + i % 2] = minus_infinity();
      }
    }
}

// Logits become weights relative to the largest so far; what was added before is scaled down to it.
template <class B>
__device__ __forceinline__ void weigh(float (&s)[B::RT][B::N / 8][4], float scale, float (&top)[B::RT][2],
                                      float (&sum)[B::RT][2], float (&o)[B::RT][B::VD / 8][4]) {
  float factor[B::RT][2];
  bool is_same = true;
#pragma unroll
  for (int t = 0; t < B::RT; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = top[t][h];
#pragma unroll
      for (int n = 0; n < B::N / 8; ++n) most = fmaxf(most, fmaxf(s[t][n][2 * h], s[t][n][2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float base = most == minus_infinity() ? 0 : most, shift = -base * scale;
      factor[t][h] = exp2_fast((top[t][h] - base) * scale);  // 1 if nothing changed
      is_same = is_same && factor[t][h] == 1;
      top[t][h] = most;
      float added = 0;
#pragma unroll
      for (int i = 0; i < B::N / 4; ++i) {
        float& x = s[t][i / 2][2 * h + i % 2];
        added += x = exp2_fast(fmaf(x, scale, shift));
      }
      sum[t][h] = sum[t][h] * factor[t][h] + added;
    }
  if (__all_sync(~0u, is_same)) return;
#pragma unroll
  for (int t = 0; t < B::RT; ++t)
#pragma unroll
    for (int d = 0; d < B::VD / 8; ++d)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[t][d][i] *= factor[t][i / 2];
}

// What a row's sums are multiplied with in the end; a sink is one more logit without a value.
__device__ __forceinline__ float final_scale(float top, float sum, const float* sinks, int head) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (!sinks) return sum > 0 ? 1 / sum : sum;
  const float sink = sinks[head] * kLog2e, most = fmaxf(top, sink), down = exp2_fast(top - most);
  return down / (sum * down + exp2_fast(sink - most));
}

template <Real T>
__device__ __forceinline__ void put_pair(void* rows, size_t at, float a, float b, bool both) {
  constexpr int bytes = T == Real::f32 ? 4 : 2;
  uint8_t* p = static_cast<uint8_t*>(rows) + at * bytes;
  if (both && reinterpret_cast<uintptr_t>(p) % (2 * bytes) == 0) {
    if constexpr (T == Real::f32)
      *reinterpret_cast<float2*>(p) = {a, b};
    else if constexpr (T == Real::f16)
      *reinterpret_cast<uint32_t*>(p) = pack_half2(a, b);
    else
      *reinterpret_cast<uint32_t*>(p) = pack_two<T>(a, b);
    return;
  }
  if constexpr (T == Real::f16) {  // means of V, which is f16: rounding alone makes them too large
    reinterpret_cast<uint16_t*>(p)[0] = static_cast<uint16_t>(pack_half2(a, b));
    if (both) reinterpret_cast<uint16_t*>(p)[1] = static_cast<uint16_t>(pack_half2(a, b) >> 16);
    return;
  }
  put<T>(p, 0, a);
  if (both) put<T>(p, 1, b);
}

// Grid: KV heads and parts of V, tiles of rows with the last one first (it sees most), sequences.
template <class B, int H, bool HasCap, Real T, bool HasSpans>
__device__ __forceinline__ void attend_prompt(const PromptQueries& in, const Prompts& prompts, const uint8_t* k,
                                              const uint8_t* v, int capacity, int parts, const PromptLogits& logits,
                                              const PromptResult& out) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* ring = shared + B::q_bytes;
  int* positions = reinterpret_cast<int*>(ring + B::S * B::slot_bytes);
  start_next();
  wait_for_previous();
  const int kv_head = blockIdx.x / parts, part = blockIdx.x % parts, first = (gridDim.y - 1 - blockIdx.y) * B::rows;
  const Prompt p = find_prompt(prompts, blockIdx.z);
  const int end_row = p.count * in.group;
  if (p.count < prompts.least || first >= end_row) return;

  const int end = first + B::rows < end_row ? first + B::rows : end_row;
  const int low = p.position + first / in.group, high = p.position + (end - 1) / in.group;  // positions of the block
  const Sight<HasSpans> sight{prompts, p};
  const int reach = min(sight.last(high), p.length - 1);
  const int begin = max(sight.first(low), 0) / B::N, offset = p.first_key / B::N;
  int stop = reach < 0 ? begin : reach / B::N + 1;
  stop = stop < offset + capacity ? stop : offset + capacity;
  const int tiles = 2 * (stop - begin);  // K and V in turn

  const size_t slot = (static_cast<size_t>(blockIdx.z) * (in.heads / in.group) + kv_head) * capacity + (begin - offset);
  constexpr int k_bytes = B::N * B::KD * 2, v_bytes = B::N * B::VD * 2;
  const uint8_t* k_from = k + slot * k_bytes + threadIdx.x * 16;
  const uint8_t* v_from = v + (slot * parts + part) * v_bytes + threadIdx.x * 16;
  const uint32_t ring_at = shared_address(ring);
  auto fetch = [&](int i) {
    if (i < tiles) {
      const uint32_t to = ring_at + i % B::S * B::slot_bytes + threadIdx.x * 16;
      const bool is_value = i % 2;
      const uint8_t* from = is_value ? v_from + static_cast<size_t>(i / 2) * parts * v_bytes
                                     : k_from + static_cast<size_t>(i / 2) * k_bytes;
      const int bytes = is_value ? v_bytes : k_bytes;
#pragma unroll
      for (int c = 0; c < (k_bytes > v_bytes ? k_bytes : v_bytes); c += B::threads * 16)
        if (c + static_cast<int>(threadIdx.x) * 16 < bytes) copy_async(to + c, from + c);
    }
    end_copies();
  };
#pragma unroll
  for (int i = 0; i < B::S - 1; ++i) fetch(i);
  QueryLoader<B, H>{in, p, kv_head, first, shared, positions}.load();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float scale = HasCap ? 1.0f : logits.scale * kLog2e;
  const uint32_t q = shared_address(shared) + warp * 16 * B::RT * B::KD * 2;
  float s[B::RT][B::N / 8][4], o[B::RT][B::VD / 8][4] = {}, top[B::RT][2], sum[B::RT][2] = {};
#pragma unroll
  for (int t = 0; t < B::RT; ++t) top[t][0] = top[t][1] = minus_infinity();
  auto next = [&](int i) {  // the slot of tile i, which has come; all are done with the one that is fetched into next
    wait_copies<B::S - 2>();
    __syncthreads();
    fetch(i + B::S - 1);
    return ring_at + i % B::S * B::slot_bytes;
  };
  for (int i = 0; i < tiles; i += 2) {
    multiply_keys<B>(q, next(i), s);
    if constexpr (HasCap) cap_logits(s, logits.scale, logits.softcap);
    const int key = (begin + i / 2) * B::N, seen = min(sight.last(low), p.length - 1);
    if (key + B::N - 1 > seen || key < sight.first(high))
      mask_keys(s, positions + warp * 16 * B::RT, key, p.length - 1, sight);
    weigh<B>(s, scale, top, sum, o);
    add_values<B>(s, next(i + 1), o);
  }

#pragma unroll
  for (int t = 0; t < B::RT; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + (warp * B::RT + t) * 16 + 8 * h + lane / 4, token = row / in.group;
      const int head = kv_head * in.group + row % in.group;
      const float last = final_scale(top[t][h] * scale, sum[t][h], logits.sinks, head);
      if (row >= end || sight.leaves(p.position + token)) continue;
      const size_t at = static_cast<size_t>(p.row + token) * out.stride;
#pragma unroll
      for (int d = 0; d < B::VD / 8; ++d) {
        const int column = part * B::VD + 8 * d + lane % 4 * 2;
        if (column < out.dim)
          put_pair<T>(out.rows, at + head * out.dim + column, o[t][d][2 * h] * last, o[t][d][2 * h + 1] * last,
                      column + 1 < out.dim);
      }
      if (head == in.heads - 1 && part == 0)
        for (int c = in.heads * out.dim + lane % 4; c < out.width; c += 4) put<T>(out.rows, at + c, 0);
    }
}

}  // namespace fewbit
