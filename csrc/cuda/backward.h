// Products by the transpose of a matrix, for gradients: some of its rows as floats, times rows of gradients, in f32.
#pragma once
#include "device.h"

namespace fewbit {

// A block makes 64 tokens by 64 columns; each of its 256 threads 4 by 4 of them, 16 apart.
constexpr int kBackwardTile = 64, kBackwardRows = 16;

// out[t][i] = sum over r of grad[t][r] * w[r][i], added to what is there (`add`). Sums have the order of the rows.
__device__ __forceinline__ void backward_rows(const float* grad, int grad_stride, const float* w, float* out,
                                              int tokens, int rows, int k, bool add) {
  __shared__ float g[kBackwardRows][kBackwardTile + 1], v[kBackwardRows][kBackwardTile];
  start_next();
  wait_for_previous();
  const int x = threadIdx.x % 16, y = threadIdx.x / 16, token = blockIdx.y * kBackwardTile,
            column = blockIdx.x * kBackwardTile;
  float sum[4][4] = {};
  for (int first = 0; first < rows; first += kBackwardRows) {
    __syncthreads();
    for (int i = threadIdx.x; i < kBackwardRows * kBackwardTile; i += 256) {
      const int t = i / kBackwardRows, r = i % kBackwardRows, c = i % kBackwardTile, row = i / kBackwardTile;
      g[r][t] = token + t < tokens && first + r < rows ? grad[static_cast<size_t>(token + t) * grad_stride + first + r]
                                                       : 0.0f;
      v[row][c] = column + c < k && first + row < rows ? w[static_cast<size_t>(first + row) * k + column + c] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kBackwardRows; ++r) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = g[r][y + 16 * i], b[i] = v[r][x + 16 * i];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int t = token + y + 16 * i, c = column + x + 16 * j;
      if (t >= tokens || c >= k) continue;
      float* to = out + static_cast<size_t>(t) * k + c;
      *to = add ? *to + sum[i][j] : sum[i][j];
    }
  }
}

}  // namespace fewbit
