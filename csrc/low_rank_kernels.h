// The kernels of low-rank terms: see kernels/low_rank.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/geometry.h"

namespace fewbit {

constexpr size_t kLowRankPanel = 64;  // rows of B that lie together

struct LowRankKernels {
  // t[j * stride + i] = a[i] . x[rows[j]]
  void (*down)(Real real, const uint8_t* a, size_t ranks, size_t k, const float* x, const int32_t* rows, size_t count,
               float* t, size_t stride);
  // y[rows[j] * stride + c] += sum over i of t[j * r + i] * b[i * width + c]
  void (*up)(Real real, const uint8_t* b, size_t r, size_t width, const float* t, const int32_t* rows, size_t count,
             float* y, size_t stride);
};

}  // namespace fewbit
