// What a product does with its sums: it adds a bias and a residual, or gates the rows of one matrix by those of
// another.
#pragma once
#include "maths.h"
#include "tile.h"

namespace fewbit {

// Packed weights: n results come from them. `gain` is what decoded weights are multiplied by, `down` takes it away.
struct Matrix {
  Planes planes;
  float gain, down;
  int n;
};

struct Plain {
  static constexpr bool is_gated = false;
};
// Tiles of 8 rows take turns: gate, up, gate, up; a pair of them makes 8 results.
template <Maths M>
struct Gated {
  static constexpr bool is_gated = true;
  static __device__ __forceinline__ float join(float gate, float up) { return gated<M>(gate, up); }
};

template <class E>
__device__ __forceinline__ int last_tile(int n) {
  return E::is_gated ? (n + 7) / 8 * 2 - 1 : (n + 7) / 8 - 1;
}
template <class E>
__device__ __forceinline__ int last_pair(int n) {  // its first tile
  return E::is_gated ? (n + 7) / 8 * 2 - 2 : (n + 15) / 16 * 2 - 2;
}

// Rows of y and of the residual, which y may be itself.
struct Result {
  float* y;
  const float *bias, *residual;
  int stride, residual_stride;

  __device__ __forceinline__ Result from(int column) const {
    return {y + column, bias ? bias + column : nullptr, residual ? residual + column : nullptr, stride,
            residual_stride};
  }
  __device__ __forceinline__ float added(int token, int row) const {
    const float v = bias ? bias[row] : 0.0f;
    return residual ? v + residual[static_cast<size_t>(token) * residual_stride + row] : v;
  }
  __device__ __forceinline__ void put(int token, int row, float v) const {
    y[static_cast<size_t>(token) * stride + row] = v;
  }
  __device__ __forceinline__ void store(int token, int row, float v) const { put(token, row, v + added(token, row)); }
};

}  // namespace fewbit
