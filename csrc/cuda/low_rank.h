// Low-rank terms of adapters: y += weight * scale * B (A x), for each of the adapters of a row. A and B are f16; ranks
// are padded with zeros to a multiple of 8.
#pragma once
#include "embed.h"

namespace fewbit {

// Of an adapter, for one product; r 0: there is none.
struct LowRankTerm {
  const uint16_t* a;  // (r, k), of a table (tokens, r)
  const uint16_t* b;  // (n, r)
  int r;
  float scale;
};

// Adapters of each token, `mix` places: slots of the table of adapters, below 0: none, and weights. `indices`: the
// tokens of rows whose logits are wanted.
struct RowAdapters {
  const void* table;  // of LowRankTerm
  int products;       // terms of a slot
  const int* slots;
  const float* weights;
  const int* indices;
  int mix;

  __device__ __forceinline__ const LowRankTerm& term(int slot, int product) const {
    return static_cast<const LowRankTerm*>(table)[static_cast<size_t>(slot) * products + product];
  }
  __device__ __forceinline__ int place(int row, int i) const { return (indices ? indices[row] : row) * mix + i; }
};

// What is added to: column c is at c / 8 * step + c % 8.
struct LowRankOut {
  float* y;
  int stride, step, n, product;
};

struct Four {
  int a, b, c, d;
  __device__ __forceinline__ int operator[](int i) const { return i == 0 ? a : i == 1 ? b : i == 2 ? c : d; }
};

__device__ __forceinline__ float dot_8(const uint4& w, const float* x) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += half_bits(words[i] & 0xffff) * x[2 * i];
    sum += half_bits(words[i] >> 16) * x[2 * i + 1];
  }
  return sum;
}

constexpr int kHeld = 4;  // times 8 values of a matrix, that a thread loads before it waits for the kernel before

// t = weight * scale * A x, of rows x that are normed first where there is a norm. Block x has an adapter of a row,
// block y a product, block z two ranks, four warps each.
template <bool has_norm>
__device__ __forceinline__ void low_rank_down(const RowAdapters& adapters, ConstRows x, int k, const float* weight,
                                              float eps, float* t, int ranks, const Four& products) {
  __shared__ float parts[8], square_parts[8];
  start_next();
  // Adapters are inputs of the step: no kernel writes them.
  const int place = adapters.place(blockIdx.x / adapters.mix, blockIdx.x % adapters.mix), slot = adapters.slots[place];
  const int warp = threadIdx.x / 32, rank = blockIdx.z * 2 + warp / 4, thread = threadIdx.x % 128;
  const LowRankTerm term = slot < 0 ? LowRankTerm{} : adapters.term(slot, products[blockIdx.y]);
  const bool is_used = blockIdx.z * 2 < term.r;  // both ranks: they are a multiple of 8
  const uint16_t* a = term.a + static_cast<size_t>(rank) * k;
  uint4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = 8 * (thread + 128 * i);
    if (is_used && k % 8 == 0 && at < k) held[i] = load_16(a + at);
  }
  wait_for_previous();
  if (!is_used) return;
  const float* own = x[blockIdx.x / adapters.mix];
  float sum = 0, squares = 0;
  const auto value = [&](int i) {
    const float v = own[i];
    if constexpr (!has_norm) return v;
    squares += v * v;
    return v * weight[i];
  };
  const auto add = [&](const uint4& w, int at) {
    float eight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = value(at + i);
    sum += dot_8(w, eight);
  };
  if (k % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = 8 * (thread + 128 * i);
      if (at < k) add(held[i], at);
    }
#pragma unroll 4
    for (int i = 8 * (thread + 128 * kHeld); i < k; i += 8 * 128) add(load_16(a + i), i);
  } else {
    for (int i = thread; i < k; i += 128) sum += half_bits(a[i]) * value(i);
  }
  sum = reduce_warp(sum, Added());
  if constexpr (has_norm) squares = reduce_warp(squares, Added());
  if (threadIdx.x % 32 == 0) parts[warp] = sum, square_parts[warp] = squares;
  __syncthreads();
  if (thread == 0) {
    const float *four = parts + warp, *other = square_parts + warp;
    float by = term.scale * adapters.weights[place];
    if constexpr (has_norm) by *= rsqrtf((other[0] + other[1] + other[2] + other[3]) / static_cast<float>(k) + eps);
    t[(static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * ranks + rank] =
        (four[0] + four[1] + four[2] + four[3]) * by;
  }
}

// y += B t, a thread a column of row blockIdx.x; block z has a product. Of a table t is the row of A by token.
template <bool is_table>
__device__ __forceinline__ void low_rank_up(const RowAdapters& adapters, const float* t, int ranks, const int* ids,
                                            const int* previous, int tokens, const LowRankOut& out0,
                                            const LowRankOut& out1, const LowRankOut& out2, const LowRankOut& out3) {
  constexpr int kChunk = 256;
  __shared__ float values[kChunk];
  start_next();
  const LowRankOut& out = blockIdx.z == 0 ? out0 : blockIdx.z == 1 ? out1 : blockIdx.z == 2 ? out2 : out3;
  const int column = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x,
            first_slot = adapters.slots[adapters.place(row, 0)];
  uint4 held[kHeld];  // the first values of B for the first adapter
  if (first_slot >= 0 && column < out.n) {
    const LowRankTerm& term = adapters.term(first_slot, out.product);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (8 * j < term.r) held[j] = load_16(term.b + static_cast<size_t>(column) * term.r + 8 * j);
    }
  }
  wait_for_previous();
  float sum = 0;
  for (int i = 0; i < adapters.mix; ++i) {
    const int place = adapters.place(row, i), slot = adapters.slots[place];
    if (slot < 0) continue;
    const LowRankTerm& term = adapters.term(slot, out.product);
    const float by = term.scale * adapters.weights[place];
    const int id = is_table ? find_row(ids, previous, row, tokens) : 0;
    const float* own = t + ((static_cast<size_t>(blockIdx.z) * gridDim.x + row) * adapters.mix + i) * ranks;
    for (int first = 0; first < term.r; first += kChunk) {
      const int count = term.r - first < kChunk ? term.r - first : kChunk;
      __syncthreads();
      for (int j = threadIdx.x; j < count; j += blockDim.x) {
        if constexpr (is_table)
          values[j] = id < 0 ? 0.0f : half_bits(term.a[static_cast<size_t>(id) * term.r + first + j]) * by;
        else
          values[j] = own[first + j];
      }
      __syncthreads();
      if (column >= out.n) continue;
      const uint16_t* b = term.b + static_cast<size_t>(column) * term.r + first;
      const bool is_held = i == 0 && first == 0;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (8 * j < count) sum += dot_8(is_held ? held[j] : load_16(b + 8 * j), values + 8 * j);
      }
      for (int j = 8 * kHeld; j < count; j += 8) sum += dot_8(load_16(b + j), values + j);
    }
  }
  if (column < out.n) out.y[static_cast<size_t>(row) * out.stride + column / 8 * out.step + column % 8] += sum;
}

}  // namespace fewbit
