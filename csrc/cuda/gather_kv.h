// K and V of prompts, decoded from their pages to tiles of f16, each of them as it will lie in shared memory.
//
// A tile holds N keys: K as [key][dim], V as [dim][key]. Its rows are chunks of 16 bytes in swizzled order, so that
// eight rows of one chunk are in different banks. Tiles begin at multiples of N, whatever a window hides: what a token
// gets does not depend on how its prompt was cut. Keys that nobody sees are zeros.
#pragma once
#include "kv_pages.h"

namespace fewbit {

__device__ __forceinline__ uint4 pack_half8(const float (&v)[8]) {
  return {pack_half2(v[0], v[1]), pack_half2(v[2], v[3]), pack_half2(v[4], v[5]), pack_half2(v[6], v[7])};
}

// Where chunk `chunk` of a row lies in it, for rows of C chunks.
template <int C>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  constexpr int span = C % 8 == 0 ? 8 : C % 4 == 0 ? 4 : C % 2 == 0 ? 2 : 1;
  return chunk ^ (row / (8 / span) % span);
}

// K or V of a layer: heads of D values in pages of a format.
template <class F, int D, bool is_value>
struct HeadPages {
  static constexpr int dim = D;

  static __device__ __forceinline__ const uint8_t* find(const uint8_t* pages, const int* table, int key, int heads,
                                                        int head) {
    return pages + page_at<F>(table[key / kPageTokens], head, heads, D);
  }
  static __device__ __forceinline__ float value(const uint8_t* page, int token, int d) {
    return read_kv<F, is_value>(page, token, d, D);
  }

  // Whether eight dims of a token are where they can be loaded at once.
  static constexpr bool is_aligned = is_value || codes_of<F>(D) % 8 == 0;

  // Eight values as f16, of one token's dims from d on (K) or of the tokens from `token` on (V).
  static __device__ __forceinline__ uint4 eight(const uint8_t* page, int token, int d) {
    const uint8_t* p = page + code_at<F, is_value>(token, code_index<F>(d), D);
    if constexpr (is_real<F>(Real::f16)) return *reinterpret_cast<const uint4*>(p);
    if constexpr (is_real<F>(Real::f8_e4m3)) {
      const uint2 w = *reinterpret_cast<const uint2*>(p);
      uint4 out;
      f8_e4m3_to_f16(w.x, out.x, out.y);
      f8_e4m3_to_f16(w.y, out.z, out.w);
      return out;
    }
    float v[8] = {};
    if constexpr (is_real<F>(Real::f32)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 w = reinterpret_cast<const float4*>(p)[h];
        v[4 * h] = w.x, v[4 * h + 1] = w.y, v[4 * h + 2] = w.z, v[4 * h + 3] = w.w;
      }
    } else if constexpr (is_real<F>(Real::bf16)) {
      const uint4 w = *reinterpret_cast<const uint4*>(p);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = __uint_as_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
    } else if constexpr (is_quantized<F>) {
      const uint2 w = *reinterpret_cast<const uint2*>(p);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = code_value<F>((j < 4 ? w.x : w.y) >> (8 * (j % 4)), d);
      multiply_scales(page + scale_at<F, is_value>(token, d / 32, D), v);
    }
    return pack_half8(v);
  }

 private:
  static __device__ __forceinline__ void multiply_scales(const uint8_t* p, float (&v)[8]) {
    if constexpr (is_value) {  // one for each token
      const uint4 w = *reinterpret_cast<const uint4*>(p);
      const uint32_t scales[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] *= half_bits(scales[j / 2] >> (16 * (j % 2)));
    } else {
      const float scale = half_bits(*reinterpret_cast<const uint16_t*>(p));
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] *= scale;
    }
  }
};

// The sequences that a launch takes, and how far a row sees: `back` tokens before it, `ahead` tokens behind it. With a
// `back` below 0 it sees those before it in its own chunk of so many tokens.
struct Prompts {
  const int *q_starts, *lengths;
  int first, least;  // sequence of the first block; those with fewer new tokens than `least` are left alone
  int back, ahead;
  const int2* spans;  // first position and end of the span of each row, all of which it sees, too; none: there are none
  bool spans_only;    // rows that are a span of their own are left alone

  // May be below 0.
  __device__ __forceinline__ int first_seen(int position) const {
    return back < 0 ? position / -back * -back : position - back;
  }
};

// One of them.
struct Prompt {
  int sequence, row, count, length;
  int position, first_key;  // of its first new token, and the first key that this one sees
};
__device__ __forceinline__ Prompt find_prompt(const Prompts& p, int i) {
  Prompt out;
  out.sequence = p.first + i;
  out.row = p.q_starts[out.sequence];
  out.count = p.q_starts[out.sequence + 1] - out.row;
  out.length = p.lengths[out.sequence];
  out.position = out.length - out.count;
  out.first_key = max(p.first_seen(out.position), 0);
  if (p.spans && out.count > 0) out.first_key = min(out.first_key, p.spans[out.row].x);
  return out;
}

// What the rows of a prompt see. Both ends grow with the position, those of spans too.
template <bool HasSpans>
struct Sight {
  const Prompts& prompts;
  const Prompt& p;

  __device__ __forceinline__ int2 span(int position) const { return prompts.spans[p.row + (position - p.position)]; }
  // May be below 0.
  __device__ __forceinline__ int first(int position) const {
    const int own = prompts.first_seen(position);
    if constexpr (HasSpans)
      return min(own, span(position).x);
    else
      return own;
  }
  // May be behind the last key.
  __device__ __forceinline__ int last(int position) const {
    const int own = position + prompts.ahead;
    if constexpr (HasSpans)
      return max(own, span(position).y - 1);
    else
      return own;
  }
  __device__ __forceinline__ bool leaves(int position) const {
    if constexpr (HasSpans)
      return prompts.spans_only && span(position).y - span(position).x <= 1;
    else
      return false;
  }
};

// Eight values of keys that count, zeros elsewhere.
template <class Pages>
__device__ __forceinline__ uint4 read_keys(const uint8_t* pages, const int* table, int key, int d, int heads, int head,
                                           const Prompt& p) {
  if (key < p.first_key || key >= p.length || d >= Pages::dim) return {};
  const uint8_t* page = Pages::find(pages, table, key, heads, head);
  const int token = key % kPageTokens;
  if (Pages::is_aligned && d + 8 <= Pages::dim) return Pages::eight(page, token, d);
  float v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = d + j < Pages::dim ? Pages::value(page, token, d + j) : 0;
  return pack_half8(v);
}
template <class Pages>
__device__ __forceinline__ uint4 read_values(const uint8_t* pages, const int* table, int key, int d, int heads,
                                             int head, const Prompt& p) {
  if (key + 8 <= p.first_key || key >= p.length || d >= Pages::dim) return {};
  const uint8_t* page = Pages::find(pages, table, key, heads, head);
  const uint4 w = Pages::eight(page, key % kPageTokens, d);
  if (key >= p.first_key && key + 8 <= p.length) return w;
  uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (key + j < p.first_key || key + j >= p.length) words[j / 2] &= j % 2 ? 0x0000ffffu : 0xffff0000u;
  return {words[0], words[1], words[2], words[3]};
}

// Fills a tile of R rows of C chunks: several loads of a thread are under way at once.
template <int R, int C, int T, class Read>
__device__ __forceinline__ void fill_tile(uint4* tile, const Read& read) {
  constexpr int at_once = 4;
  for (int first = threadIdx.x; first < R * C; first += at_once * T) {
    uint4 v[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (first + i * T < R * C) v[i] = read((first + i * T) / C, (first + i * T) % C);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int row = (first + i * T) / C, chunk = (first + i * T) % C;
      if (row < R) tile[row * C + swizzled<C>(row, chunk)] = v[i];
    }
  }
}

// Grid: tiles of a sequence, heads of K then of V, sequences. `capacity`: tiles that there is room for.
template <class K, class V, int KD, int VD, int N, int T>
__device__ __forceinline__ void gather_kv(const uint8_t* k, const uint8_t* v, int heads, const int* tables,
                                          const int* starts, const Prompts& prompts, uint4* k_out, uint4* v_out,
                                          int capacity) {
  start_next();
  wait_for_previous();
  const Prompt p = find_prompt(prompts, blockIdx.z);
  const int key = (p.first_key / N + static_cast<int>(blockIdx.x)) * N;
  if (p.count < prompts.least || static_cast<int>(blockIdx.x) >= capacity || key >= p.length) return;
  const int* table = tables + starts[p.sequence];
  const bool is_value = static_cast<int>(blockIdx.y) >= heads;
  const int head = is_value ? blockIdx.y - heads : blockIdx.y;
  const size_t at = (static_cast<size_t>(blockIdx.z) * heads + head) * capacity + blockIdx.x;
  if (is_value)
    fill_tile<VD, N / 8, T>(v_out + at * (VD * N / 8), [&](int row, int chunk) {
      return read_values<V>(v, table, key + 8 * chunk, row, heads, head, p);
    });
  else
    fill_tile<N, KD / 8, T>(k_out + at * (KD * N / 8), [&](int row, int chunk) {
      return read_keys<K>(k, table, key + row, 8 * chunk, heads, head, p);
    });
}

}  // namespace fewbit
