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

// t = weight * scale * A x. Block x has an adapter of a row, block y a product, block z two ranks, four warps each.
__device__ __forceinline__ void low_rank_down(const RowAdapters& adapters, ConstRows x, int k, float* t, int ranks,
                                              const Four& products) {
  __shared__ float parts[8];
  start_next();
  wait_for_previous();
  const int place = adapters.place(blockIdx.x / adapters.mix, blockIdx.x % adapters.mix), slot = adapters.slots[place];
  if (slot < 0) return;
  const LowRankTerm& term = adapters.term(slot, products[blockIdx.y]);
  const int warp = threadIdx.x / 32, rank = blockIdx.z * 2 + warp / 4, thread = threadIdx.x % 128;
  if (blockIdx.z * 2 >= term.r) return;  // both: ranks are a multiple of 8
  const uint16_t* a = term.a + static_cast<size_t>(rank) * k;
  const float* own = x[blockIdx.x / adapters.mix];
  float sum = 0;
  if (k % 8 == 0) {
#pragma unroll 4
    for (int i = 8 * thread; i < k; i += 8 * 128) sum += dot_8(load_16(a + i), own + i);
  } else {
    for (int i = thread; i < k; i += 128) sum += half_bits(a[i]) * own[i];
  }
  sum = reduce_warp(sum, Added());
  if (threadIdx.x % 32 == 0) parts[warp] = sum;
  __syncthreads();
  if (thread == 0) {
    const float* four = parts + warp;
    t[(static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * ranks + rank] =
        (four[0] + four[1] + four[2] + four[3]) * (term.scale * adapters.weights[place]);
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
  wait_for_previous();
  const LowRankOut& out = blockIdx.z == 0 ? out0 : blockIdx.z == 1 ? out1 : blockIdx.z == 2 ? out2 : out3;
  const int column = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
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
      for (int j = 0; j < count; j += 8) sum += dot_8(load_16(b + j), values + j);
    }
  }
  if (column < out.n) out.y[static_cast<size_t>(row) * out.stride + column / 8 * out.step + column % 8] += sum;
}

}  // namespace fewbit
