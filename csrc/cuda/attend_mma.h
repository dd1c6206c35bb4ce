// Attention of single tokens by mma.m16n8k16. Tokens, then dims, are the rows of its first operand, query heads the
// columns of its second: scores = K (tokens, dims) x q, result = V (dims, tokens) x weights. K and V go from memory
// into its fragments in registers, without shared memory: see kv_tiles.h.
#pragma once
#include "attend.h"
#include "kv_tiles.h"

namespace fewbit {

// NT: tiles of 8 query heads. W: warps, each of which takes every W-th page.
template <class KF, class VF, int KD, int VD, int NT, int W, bool fused>
struct AttendMma {
  static constexpr int R = 8 * NT, key_blocks = KD / 32, value_blocks = VD / 32;
  static constexpr int key_words = 4 * KeyTile<KF, KD>::blocks * KeyTile<KF, KD>::words;
  static constexpr int value_words = value_blocks * ValueBlock<VF, VD>::rows * ValueBlock<VF, VD>::words;
  static constexpr bool whole = NT == 1 && key_words + value_words <= 128;              // a page is prefetched
  static constexpr bool held = NT * KD <= 128;                                          // queries stay in registers
  static constexpr int C = VD * NT * W <= 1024 ? VD : 1024 / (NT * W), stride = C + 4;  // dims joined at once
  using Keys = KeyTile<KF, KD>;
  using Values = ValueBlock<VF, VD>;

  struct Shared {
    union {
      Inputs<R, KD, VD> in;
      float values[W * R * stride];
    };
    uint2 q[held ? 1 : key_blocks * 2 * NT][32];
    alignas(16) uint8_t k[row_bytes<KF>(KD)];
    alignas(16) uint8_t v[row_bytes<VF>(VD)];
    float2 sums[W][R];
  };

  const Attend& a;
  const Task& t;
  Shared& shared;
  const int lane, warp, n, c;
  uint2 q[held ? key_blocks * 2 * NT : 1];
  float o[NT][VD / 16][4];
  float most[NT][2], sum[NT][2];                    // of query heads 2 c and 2 c + 1
  float shift[NT][Keys::zero ? key_blocks : 1][2];  // what the zero of K's codes adds to their scores, taken away

  __device__ __forceinline__ AttendMma(const Attend& a, const Task& t, Shared& shared)
      : a(a), t(t), shared(shared), lane(threadIdx.x % 32), warp(threadIdx.x / 32), n(lane / 4), c(lane % 4) {}

  __device__ __forceinline__ int token(int tile) const { return 8 * (n / 2) + 2 * tile + n % 2; }
  __device__ __forceinline__ const uint8_t* key_page(int page) const {
    return a.k_pages + page_at<KF>(page, t.group, a.kv_heads, KD);
  }
  __device__ __forceinline__ const uint8_t* value_page(int page) const {
    return a.v_pages + page_at<VF>(page, t.group, a.kv_heads, VD);
  }

  // The row's own K and V, as they are stored; the first round writes them to their page.
  __device__ __forceinline__ void pack_new() {
    const int page = t.slot / kPageTokens, place = t.slot % kPageTokens;
    const bool writes = t.head % (a.q_heads / a.kv_heads) == 0;
    for (int i = warp; i < key_blocks + value_blocks; i += W) {
      if (i < key_blocks) {
        const PackedKv x = pack_kv<KF>(shared.in.k[i * 32 + lane], lane);
        put_row<KF>(shared.k, i, lane, KD, x);
        if (writes) put_kv<KF, false>(const_cast<uint8_t*>(key_page(page)), place, i, lane, KD, x);
      } else {
        const int b = i - key_blocks;
        const PackedKv x = pack_kv<VF>(shared.in.v[b * 32 + lane], lane);
        put_row<VF>(shared.v, b, lane, VD, x);
        if (writes) put_kv<VF, true>(const_cast<uint8_t*>(value_page(page)), place, b, lane, VD, x);
      }
    }
  }

  __device__ __forceinline__ uint2 make_query(int at) const {
    const int nt = at % NT, step = at / NT % 2, j = at / NT / 2;
    const float* p = shared.in.q[8 * nt + n] + 32 * j + dim_of<KF>(c, step);
    return {pack_half2(p[0], p[1]), pack_half2(p[2], p[3])};
  }
  __device__ __forceinline__ void make_queries() {
    if constexpr (held) {
#pragma unroll
      for (int i = 0; i < key_blocks * 2 * NT; ++i) q[i] = make_query(i);
    } else {
      for (int i = warp; i < key_blocks * 2 * NT; i += W) shared.q[i][lane] = make_query(i);
    }
  }
  __device__ __forceinline__ uint2 query(int at) const {
    if constexpr (held)
      return q[at];
    else
      return shared.q[at][lane];
  }

  __device__ __forceinline__ void find_shifts() {
    if constexpr (Keys::zero > 0)
#pragma unroll
      for (int at = 0; at < NT * key_blocks; ++at) {
        const int nt = at % NT, j = at / NT;
        float own = 0;  // of query head n
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const uint2 b = query((j * 2 + step) * NT + nt);
          own += half_bits(b.x & 0xffffu) + half_bits(b.x >> 16) + half_bits(b.y & 0xffffu) + half_bits(b.y >> 16);
        }
        own += __shfl_xor_sync(~0u, own, 1);
        own += __shfl_xor_sync(~0u, own, 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) shift[nt][j][h] = -Keys::zero * __shfl_sync(~0u, own, 4 * (2 * c + h));
      }
  }

  // Scores of 16 tokens, tiles 2 i and 2 i + 1.
  __device__ __forceinline__ void score(const Keys& first, const Keys& second, int i, float (&s)[NT][2][4]) {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) s[nt][i][0] = s[nt][i][1] = s[nt][i][2] = s[nt][i][3] = 0;
#pragma unroll
    for (int j = 0; j < key_blocks; ++j) {
      float part[NT][4] = {};
      if constexpr (Keys::zero > 0)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
          part[nt][0] = part[nt][2] = shift[nt][j][0], part[nt][1] = part[nt][3] = shift[nt][j][1];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t a0, a1, a2, a3;
        first.decode(j, step, a0, a2);
        second.decode(j, step, a1, a3);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          const uint2 b = query((j * 2 + step) * NT + nt);
          mma(is_quantized<KF> ? part[nt] : s[nt][i], a0, a1, a2, a3, b.x, b.y);
        }
      }
      if constexpr (is_quantized<KF>) {
        const float x = first.scale_of(j), y = second.scale_of(j);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          s[nt][i][0] += part[nt][0] * x, s[nt][i][1] += part[nt][1] * x;
          s[nt][i][2] += part[nt][2] * y, s[nt][i][3] += part[nt][3] * y;
        }
      }
    }
  }

  // Scores of a page -> weights, transposed: `w[nt][tile]` is a pair of tokens of query head n.
  __device__ __forceinline__ void weigh(float (&s)[NT][2][4], int start, uint32_t (&w)[NT][4]) {
    bool seen[4];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile)
      seen[tile] = start + token(tile) >= t.first && start + token(tile) <= t.position;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      float down[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = most[nt][h];
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          float& x = s[nt][tile / 2][tile % 2 * 2 + h];
          x = seen[tile] ? capped(x, a) : unseen();
          top = Larger()(x, top);
        }
#pragma unroll
        for (int i = 4; i < 32; i *= 2) top = Larger()(top, __shfl_xor_sync(~0u, top, i));
        down[h] = power_of_2(most[nt][h] - top);
        most[nt][h] = top;
        float total = 0;
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          float& x = s[nt][tile / 2][tile % 2 * 2 + h];
          x = power_of_2(x - top + kLift);
          total += x;
        }
        sum[nt][h] = sum[nt][h] * down[h] + total;
      }
      if (!__all_sync(~0u, down[0] == 1 && down[1] == 1))  // most pages change nothing
#pragma unroll
        for (int u = 0; u < VD / 16; ++u)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[nt][u][i] *= down[i % 2];
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const float* x = &s[nt][tile / 2][tile % 2 * 2];
        w[nt][tile] = transposed(pack_half2(x[0], x[1]));
      }
    }
  }

  // 32 dims of V times weights.
  __device__ __forceinline__ void add_values(const Values& v, int b, const uint32_t (&w)[NT][4]) {
    uint32_t x[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[nt][i] = is_quantized<VF> ? multiply2(w[nt][i], v.scale[i]) : w[nt][i];
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a0, a1, a2, a3;
        v.decode(2 * u, i, a0, a2);
        v.decode(2 * u + 1, i, a1, a3);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) mma(o[nt][2 * b + u], a0, a1, a2, a3, x[nt][2 * i], x[nt][2 * i + 1]);
      }
  }

  // Pages that hold positions which are not seen: masks of pairs of tokens.
  __device__ __forceinline__ bool find_masks(int start, uint32_t (&keep)[4]) const {
    if (start >= t.first && start + kPageTokens - 1 <= t.position) return false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = start + 8 * c + 2 * i;
      keep[i] = (at >= t.first && at <= t.position ? 0xffffu : 0) |
                (at + 1 >= t.first && at + 1 <= t.position ? 0xffff0000u : 0);
    }
    return true;
  }
  __device__ __forceinline__ void load_keys(Keys (&keys)[whole ? 4 : 2], int page, int first) const {
#pragma unroll
    for (int i = 0; i < (whole ? 4 : 2); ++i) keys[i].load(key_page(page), token(first + i), c);
  }
  __device__ __forceinline__ void load_values(Values (&values)[whole ? value_blocks : 1], int page, int first) const {
#pragma unroll
    for (int b = 0; b < (whole ? value_blocks : 1); ++b) values[b].load(value_page(page), first + b, n, c);
  }
  __device__ __forceinline__ void take_keys(Keys (&keys)[whole ? 4 : 2], int first) const {
#pragma unroll
    for (int i = 0; i < (whole ? 4 : 2); ++i)
      if (token(first + i) == t.position % kPageTokens) keys[i].take(shared.k, c);
  }
  __device__ __forceinline__ void mend_values(Values (&values)[whole ? value_blocks : 1], int first, bool masked,
                                              const uint32_t (&keep)[4], bool own) const {
    const int place = t.position % kPageTokens;
#pragma unroll
    for (int b = 0; b < (whole ? value_blocks : 1); ++b) {
      if (masked) values[b].mask(keep);
      if (own && place / 8 == c) values[b].take(shared.v, first + b, n, place % 8);
    }
  }

  // Before the wait, where the pages are older than the step: `whole` has the first page in registers.
  Keys keys[whole ? 4 : 2];
  Values values[whole ? value_blocks : 1];
  int number, page;
  __device__ __forceinline__ void prefetch() {
    number = t.first_page + warp;
    page = number <= t.last_page ? t.table[number] : 0;
    if (whole && number <= t.last_page) {
      load_keys(keys, page, 0);
      load_values(values, page, 0);
    }
  }

  __device__ __forceinline__ void run() {
    find_shifts();
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      most[nt][0] = most[nt][1] = kNothing, sum[nt][0] = sum[nt][1] = 0;
#pragma unroll
      for (int i = 0; i < VD / 4; ++i) o[nt][i / 4][i % 4] = 0;
    }
    while (number <= t.last_page) {
      const int next = number + W, start = number * kPageTokens;
      const int next_page = next <= t.last_page ? t.table[next] : 0;
      const bool own = fused && number == t.position / kPageTokens;
      float s[NT][2][4];
      uint32_t w[NT][4], keep[4];
      const bool masked = find_masks(start, keep);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!whole) load_keys(keys, page, 2 * i);
        if (own && (!whole || i == 0)) take_keys(keys, whole ? 0 : 2 * i);
        score(keys[whole ? 2 * i : 0], keys[whole ? 2 * i + 1 : 1], i, s);
      }
      if (whole && next <= t.last_page) load_keys(keys, next_page, 0);
      weigh(s, start, w);
      if (whole && (masked || own)) mend_values(values, 0, masked, keep, own);
#pragma unroll
      for (int b = 0; b < value_blocks; ++b) {
        if (!whole) load_values(values, page, b);
        if (!whole && (masked || own)) mend_values(values, b, masked, keep, own);
        add_values(values[whole ? b : 0], b, w);
      }
      if (whole && next <= t.last_page) load_values(values, next_page, 0);
      number = next, page = next_page;
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 4; i < 32; i *= 2) sum[nt][h] += __shfl_xor_sync(~0u, sum[nt][h], i);
        if (n == 0) shared.sums[warp][8 * nt + 2 * c + h] = {most[nt][h], sum[nt][h]};
      }
#pragma unroll
    for (int dim = 0; dim < VD; dim += C) {
      __syncthreads();  // what lay there has been read
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int u = 0; u < C / 16; ++u)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (dim + 16 * u < VD)
              shared.values[(warp * R + 8 * nt + 2 * c + i % 2) * stride + 16 * u + 8 * (i / 2) + n] =
                  o[nt][dim / 16 + u][i];
      __syncthreads();
      join_warps<VD, R, W, C, stride>(a, t, shared.sums, shared.values, dim);
    }
    if (t.pieces > 1) join_pieces<VD>(a, t);
  }
};

template <class KF, class VF, int KD, int VD, int NT, int W, bool fused>
__device__ __forceinline__ void attend_mma(const Attend& a) {
  using Work = AttendMma<KF, VF, KD, VD, NT, W, fused>;
  __shared__ typename Work::Shared shared;
  start_next();
  if (!fused) wait_for_previous();
  const Task t = find_task<8 * NT, fused>(a);
  if (t.empty || t.piece >= t.pieces) {
    if (fused) wait_for_previous();
    if (t.empty && t.piece == 0) put_zeros<VD>(a, t);
    return;
  }
  Work work(a, t, shared);
  load_turns(a, t, false, shared.in);
  work.prefetch();
  if (fused) wait_for_previous();
  const bool with_new = fused && t.is_last();
  load_inputs<32 * W>(a, t, with_new, shared.in);
  if (with_new) work.pack_new();
  work.make_queries();
  __syncthreads();
  work.run();
  work.finish();
}

}  // namespace fewbit
