// Products of packed rows and 8-bit or bf16 activations: what an instruction set has for each format, and what those
// kernels share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "activation.h"
#include "formats/geometry.h"

namespace fewbit {

struct Kernels;

// Some columns of activations that are packed as tiles: `count` tiles of 16 columns of `all`, from the one at `x`.
struct Columns {
  const uint16_t* x;
  size_t count, all;
};

// Products of interleaved rows where an instruction takes four activations out of a lane: columns are packed for
// it first, in sets of four. See kernels/by_lane.h; all null where there is none.
constexpr size_t kLaneSet = 4;

struct LaneKernels {
  size_t (*set_bytes)(size_t k);
  // `set` of those of all columns. `twice`: two columns are a row in 16 bits.
  void (*pack)(const Activation* x, size_t columns, size_t k, size_t set, bool twice, void* out);
  using Multiply = void (*)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns,
                            float* y, size_t y_stride, void* scratch);
  Multiply skinny[2], panels[2];  // of columns, and of rows in 16 bits, of which y has one result
  size_t least_panels, scratch_bytes;
};

// Products of one format. A null pointer: there is no such kernel. All take `rows` rows of weights and write
// y[column][row]; those with `scratch` want memory of their thread's own.
struct ProductKernels {
  int group_size;  // values that share a scale, as the kernels see it: 16 or 32
  void (*gemv)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
               size_t y_stride);
  void (*micro)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                float* y, size_t y_stride, void* scratch);
  size_t (*micro_scratch)(size_t k);
  size_t least_micro;  // columns from which `micro` is faster than `gemv`
  // Rows of a multiple of so many values can be interleaved; 0: none. Where they can, `micro` and what follows take
  // interleaved rows only: multiples of 16 rows and, but for `interleaved_gemv`, of 256 values. See
  // kernels/interleaved.h.
  size_t interleaves;
  size_t laid_at_once;  // bytes of a row whose fours, and then the rest, lie together; 0: all of it
  void (*interleaved_gemv)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x,
                           size_t columns, float* y, size_t y_stride);
  LaneKernels by_lane;  // in the place of `interleaved_gemv` and `micro`
  void (*skinny)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
  void (*fused)(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                size_t y_stride, void* scratch);
  void (*packed)(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
};

// What products on matrix tiles need beside their kernels.
struct Tiles {
  void (*pack_columns)(const float* x, size_t m, size_t k, size_t first_tile, size_t last_tile, uint16_t* out);
  // One k-block for `skinny`, for weights with a scale for so many values: 16 or 32.
  void (*pack_skinny)(int group_size, const Activation* x, size_t stride, size_t columns, void* out);
  size_t (*skinny_bytes)(int group_size);
  void (*quantize_left)(int group_size, const float* x, size_t stride, size_t columns, void* out);  // a whole one
  size_t (*scratch_bytes)(size_t columns);
};

// `bytes` bytes of 16 rows, from interleaved ones to rows that are `stride` bytes apart, and back.
struct InterleaveMoves {
  void (*from)(const uint8_t* panel, size_t bytes, uint8_t* rows, size_t stride);
  void (*to)(const uint8_t* rows, size_t stride, size_t bytes, uint8_t* panel);
};

// What the machine can do at most, measured: csrc/probe.h.
struct Probes {
  uint64_t (*read)(const uint8_t* p, size_t bytes);             // plain loads
  uint64_t (*read_prefetched)(const uint8_t* p, size_t bytes);  // with software prefetch
  size_t (*int8)(size_t rounds, float* sink);                   // multiply-adds in registers; returns how many
  size_t (*f32)(size_t rounds, float* sink);
  size_t (*bf16)(size_t rounds, float* sink);  // null: not used on this instruction set
};

// The table of an instruction set.
struct ProductTable {
  void (*add)(Kernels* by_format);
  void (*quantize_row)(const float* x, size_t k, Activation* out);
  InterleaveMoves interleave;
  Probes probes;
  const std::atomic<uint64_t>& count;  // calls of kernels that multiply
  size_t int16_rows;  // up to so many rows of activations are taken in 16 bits by default: that costs less than 15%
  const Tiles* tiles = nullptr;
};

}  // namespace fewbit
