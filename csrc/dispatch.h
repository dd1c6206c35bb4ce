// Which kernels run: one table of functions for each instruction set, the best available one in use.
#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "activation.h"
#include "formats/geometry.h"
#include "kv_kernels.h"
#include "recurrent_kernels.h"

namespace fewbit {

using Encode = void (*)(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out);

// Some columns of activations that are packed as tiles: `count` tiles of 16 columns of `all`, from the one at `x`.
struct Columns {
  const uint16_t* x;
  size_t count, all;
};

constexpr size_t kExactRows = 4;  // rows that `exact` takes together: floats of its scratch, times k

// Products of interleaved rows where an instruction takes four activations out of a lane: columns are packed for
// it first, in sets of four. See kernels/by_lane.h; all null where there is none.
constexpr size_t kLaneSet = 4;

struct LaneKernels {
  size_t (*set_bytes)(size_t k);
  void (*pack)(const Activation* x, size_t columns, size_t k, size_t set, void* out);  // `set` of those of all columns
  void (*skinny)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
  void (*panels)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
  size_t least_panels, scratch_bytes;
};

// What can be done with rows of one format on one instruction set. A null pointer: it cannot be done. All products take
// `rows` rows of weights and write y[column][row]; those with `scratch` want memory of their thread's own.
struct Kernels {
  const char* format;
  int group_size;  // values that share a scale, as the kernels see it: 16 or 32
  Layout (*layout)(size_t k, size_t group);
  void (*decode)(const uint8_t* row, size_t k, const Layout& at, float* out);
  Encode encode;
  void (*exact)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch);
  void (*gemv)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
               size_t y_stride);
  void (*micro)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                float* y, size_t y_stride, void* scratch);
  size_t (*micro_scratch)(size_t k);
  size_t least_micro;  // columns from which `micro` is faster than `gemv`
  // Where a format can be interleaved, `micro` and what follows take interleaved rows only: multiples of 16 rows and of
  // 256 values. See kernels/interleaved.h.
  bool interleaves;
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
  KvKernels kv;
  int kv_block;  // values that a row of the KV cache is padded to: 1 or 32
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

// What the machine can do at most, measured: csrc/probe.h.
struct Probes {
  uint64_t (*read)(const uint8_t* p, size_t bytes);             // plain loads
  uint64_t (*read_prefetched)(const uint8_t* p, size_t bytes);  // with software prefetch
  size_t (*int8)(size_t rounds, float* sink);                   // multiply-adds in registers; returns how many
  size_t (*f32)(size_t rounds, float* sink);
  size_t (*bf16)(size_t rounds, float* sink);  // null: not used on this instruction set
};

enum class Gate { silu, gelu, gelu_tanh, relu };

// What a model does with rows of activations beside products. See kernels/rows.h.
struct RowKernels {
  void (*norm)(const float* x, size_t n, const float* weight, float eps, float* out);
  void (*rope)(float* x, size_t heads, size_t dim, const float* cosines, const float* sines, size_t pairs, bool neox);
  void (*gate)(Gate kind, const float* x, size_t n, float* out);
};

// `bytes` bytes of 16 rows, from interleaved ones to rows that are `stride` bytes apart, and back.
struct InterleaveMoves {
  void (*from)(const uint8_t* panel, size_t bytes, uint8_t* rows, size_t stride);
  void (*to)(const uint8_t* rows, size_t stride, size_t bytes, uint8_t* panel);
};

// The last two are null where a target cannot do it.
struct Target {
  const char* name;
  bool (*available)();
  const Kernels* (*kernels)();  // in the order of FEWBIT_FORMATS
  void (*quantize_row)(const float* x, size_t k, Activation* out);
  void (*weigh)(float* s, size_t rows, size_t tokens, KvState* state, float* factors);  // scores to weights
  void (*scale)(const float* x, size_t count, float by, float* out);
  void (*rotate)(const float* x, size_t size, float by, float* out);  // the Hadamard transform, times `by`
  RowKernels rows;
  InterleaveMoves interleave;
  const Tiles* tiles;  // null: there are none
  Probes probes;
  const std::atomic<uint64_t>& products;  // calls of the kernels that multiply
  const RecurrentKernels& recurrent;
  const IntegerAttention* integer_attention = nullptr;
  const MatrixAttention* matrix_attention = nullptr;
  size_t int16_rows = 0;  // of activations that are taken in 16 bits unless told otherwise: that costs less than 15%
};

const std::vector<const Target*>& compiled_targets();   // those that this build has, best first
const std::vector<const Target*>& available_targets();  // those of them that this machine runs, best first
const Target& current_target();
void use_target(const std::string& name);  // throws std::invalid_argument if it is not available
const std::vector<std::string>& format_names();
size_t format_number(std::string_view name);  // its place in format_names
// Whether integer dot products can be used for rows of this layout: groups are whole 32s, or one for the row.
bool has_dot(const Kernels& kernels, const Layout& at, size_t k);
// Whether products can interleave rows of this layout as they go, padded to whole k-blocks: with scales at their end,
// groups must be powers of two.
bool has_panels(const Kernels& kernels, const Layout& at, size_t k);
// Whether rows of k values can be stored interleaved: the same, and whole k-blocks.
bool can_interleave(const Kernels& kernels, const Layout& at, size_t k);

}  // namespace fewbit
