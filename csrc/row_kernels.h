// What a model does with rows of floats beside products, and how rows of a format become floats.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/geometry.h"
#include "low_rank_kernels.h"
#include "passes.h"
#include "recurrent_kernels.h"

namespace fewbit {

struct Kernels;

constexpr size_t kExactRows = 4;  // rows that `exact` takes together: floats of its scratch, times k

// Rows of one format as floats.
struct DecodeKernels {
  const char* format;
  Layout (*layout)(size_t k, size_t group);
  void (*decode)(const uint8_t* row, size_t k, const Layout& at, float* out);
  void (*exact)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch);
};

enum class Gate { silu, gelu, gelu_tanh, relu };

// The table of an instruction set. See kernels/rows.h.
struct RowTable {
  void (*add)(Kernels* by_format);
  void (*norm)(const float* x, size_t n, const float* weight, float eps, float* out);
  void (*rope)(float* x, size_t heads, size_t dim, const float* cosines, const float* sines, size_t pairs, bool neox);
  void (*gate)(Gate kind, const float* x, size_t n, float* out);
  void (*scale)(const float* x, size_t count, float by, float* out);
  void (*rotate)(const float* x, size_t size, float by, float* out);  // the Hadamard transform, times `by`
  void (*backward)(const float* w, size_t rows, size_t stride, size_t columns, const float* grad, size_t grad_stride,
                   size_t tokens, float* out, size_t out_stride);  // out += grad times decoded rows
  RecurrentKernels recurrent;
  Passes passes;
  LowRankKernels low_rank;
};

}  // namespace fewbit
