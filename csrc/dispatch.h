// Which kernels run: one table of functions for each instruction set, the best available one in use.
#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "activation.h"
#include "formats/geometry.h"

namespace fewbit {

using Encode = void (*)(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out);

// Some columns of activations that are packed as tiles: `count` tiles of 16 columns of `all`, from the one at `x`.
struct Columns {
  const uint16_t* x;
  size_t count, all;
};

// What attention does with rows of the KV cache; null where a format cannot be used there. See kernels/kv.h.
constexpr size_t kKvTokens = 32;  // at once: the pitch of scores

struct KvState {  // of a query: the largest logit, and the sum of weights beside it
  float max, sum;
};

// What will be read next, as large as what is read now, and after that, from two places half as much; null: nothing.
struct KvAhead {
  const uint8_t *next = nullptr, *later[2] = {};
};

// Memory for attention of up to kMostCodeRows queries on int8 tiles.
constexpr size_t kMostCodeBlocks = 8;  // of 32 values
constexpr size_t kMostCodeRows = 8, kCodeSets = kMostCodeRows / 4;

struct CodeQueries {  // as tiles, and what one unit of each row stands for
  alignas(64) int8_t tiles[kCodeSets][kMostCodeBlocks / 2][1024];
  alignas(64) float units[kCodeSets][4];
};

struct CodeScratch {
  const int8_t *keys_at, *values_at;                      // those below, or where they lie in a page
  alignas(64) int8_t keys[kMostCodeBlocks / 2][2][1024];  // tiles
  alignas(64) int8_t values[kMostCodeBlocks / 2][2][1024];
  alignas(64) int8_t weights[kCodeSets][kMostCodeBlocks / 2][1024];  // 0 where never anything is written
  alignas(64) float key_scales[kMostCodeBlocks][kKvTokens];
  alignas(64) float value_scales[kMostCodeBlocks][kKvTokens];
  alignas(64) float units[kCodeSets][kMostCodeBlocks * 4];  // of weights, [block][row]
  alignas(64) int32_t key_results[kCodeSets][kMostCodeBlocks][16][16];
  alignas(64) int32_t value_results[kCodeSets][kMostCodeBlocks][16][16];

  struct Ahead {  // keys and values that will be read, so many bytes of each: as far as they were asked for
    const uint8_t *keys = nullptr, *values = nullptr;
    size_t bytes = 0, at = 0, to = 0;
  } ahead;
};

struct KvKernels {
  void (*scores)(const float* q, size_t rows, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes,
                 size_t dim, KvAhead ahead, float* s);
  void (*values)(const float* p, size_t rows, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
                 KvAhead ahead, float* out, size_t stride);
  void (*floats)(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, KvAhead ahead, float* out,
                 size_t stride);
  // Integers as tiles and their scales; null where they cannot be had, or used. See kernels/tile_codes.h.
  void (*key_codes)(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) = nullptr;
  void (*value_codes)(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, CodeScratch& own) = nullptr;
  // The same for what lies in a page as tiles want it, and a row to and from its place there: kernels/kv_tiled.h.
  void (*key_tiles)(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) = nullptr;
  void (*value_tiles)(const uint8_t* slab, size_t tokens, size_t dim, CodeScratch& own) = nullptr;
  void (*to_tiled)(const uint8_t* row, size_t token, size_t dim, bool is_value, uint8_t* slab) = nullptr;
  void (*from_tiled)(const uint8_t* slab, size_t token, size_t dim, bool is_value, uint8_t* row) = nullptr;
  void (*tiled_floats)(const uint8_t* slab, size_t tokens, size_t dim, bool is_value, float* out,
                       size_t stride) = nullptr;  // null where there are no tiles
  // Floats to their place there; false if it cannot. See kernels/kv_quick.h.
  bool (*quick_to_tiled)(const float* x, size_t token, size_t dim, bool is_value, uint8_t* slab) = nullptr;
};
inline bool can_tile(const KvKernels& kernels, size_t dim) {
  return kernels.to_tiled && dim > 0 && dim % 64 == 0 && dim <= 32 * kMostCodeBlocks;
}

constexpr size_t kExactRows = 4;  // rows that `exact` takes together: floats of its scratch, times k

// What can be done with rows of one format on one instruction set. A null pointer: it cannot be done. All products take
// `rows` rows of weights and write y[column][row]; those with `scratch` want memory of their thread's own.
struct Kernels {
  const char* format;
  int sub;  // values that share a scale, as the kernels see it: 16 or 32
  Layout (*layout)(size_t k, size_t group);
  void (*decode)(const uint8_t* row, size_t k, const Layout& at, float* out);
  Encode encode;
  void (*exact)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch);
  void (*dot)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
              size_t y_stride);
  void (*lanes)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                float* y, size_t y_stride, void* scratch);
  size_t (*lane_scratch)(size_t k);
  size_t least_lanes;  // columns from which `lanes` is faster than `dot`
  // The same for rows that lie abreast: multiples of 16 rows and of 256 values. See kernels/abreast.h.
  bool lies_abreast;    // whether this format ever does
  size_t laid_at_once;  // bytes of a row whose fours, and then the rest, lie together; 0: all of it
  void (*abreast)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                  float* y, size_t y_stride);
  void (*lanes_abreast)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                        float* y, size_t y_stride, void* scratch);
  void (*few_abreast)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns,
                      float* y, size_t y_stride, void* scratch);
  void (*few)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* x, size_t columns, float* y,
              size_t y_stride, void* scratch);
  void (*strips)(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
  void (*panels)(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                 size_t y_stride, void* scratch);
  KvKernels kv;
  int kv_block;  // values that a row of the KV cache is padded to: 1 or 32
};

// Attention of many queries on matrix tiles: rows of `pad` floats, a multiple of 32. See kernels/tile_attention.h.
struct TileAttention {
  size_t (*steps)(size_t pad);  // 1 KiB of tiles for every 16 rows and step
  void (*pack_queries)(const float* q, size_t rows, size_t pad, uint16_t* out);
  void (*scores)(const uint16_t* q, size_t rows, const float* k, size_t tokens, size_t pad, uint16_t* packed, float* s);
  void (*values)(const float* p, size_t rows, const float* v, size_t tokens, size_t pad, uint16_t* packed_p,
                 uint16_t* packed_v, float* out);
  void (*keep_awake)();                                 // to be called now and then between them
  void (*with_tiles)(void (*work)(void*), void* what);  // all three are called from `work`
};

// Attention of a few queries on int8 tiles, its steps in the order of the data: see kernels/tile_codes.h.
struct CodeAttention {
  void (*pack_queries)(const float* q, size_t rows, size_t pad, CodeQueries& out);
  void (*multiply_keys)(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own);
  void (*scores)(const CodeQueries& q, size_t rows, size_t tokens, size_t blocks, CodeScratch& own, float* s);
  void (*pack_weights)(const float* p, size_t rows, size_t tokens, size_t blocks, CodeScratch& own);
  void (*multiply_values)(size_t rows, size_t blocks, CodeScratch& own);
  void (*add_values)(size_t rows, size_t blocks, CodeScratch& own, float* out, size_t stride);
  void (*with_tiles)(void (*work)(void*), void* what);  // all of them are called from `work`
};

// How activations of a few columns stand in tiles for weights with a scale for so many values: on the right, or on the
// left for rows that lie abreast.
enum class FewForm { right16, right32, left16, left32 };
constexpr size_t kFewForms = 4;
constexpr bool is_left(FewForm form) { return form == FewForm::left16 || form == FewForm::left32; }

// What products on matrix tiles need beside their kernels.
struct Tiles {
  void (*pack_columns)(const float* x, size_t m, size_t k, size_t first_tile, size_t last_tile, uint16_t* out);
  void (*pack_few)(FewForm form, const Activation* x, size_t stride, size_t columns, void* out);  // one span
  size_t (*few_bytes)(FewForm form);                                                              // of one span
  void (*quantize_left)(FewForm form, const float* x, size_t stride, size_t columns, void* out);  // one whole span
  size_t (*scratch_bytes)(size_t columns);
  TileAttention attention;
  CodeAttention codes;
};

// What the machine can do at most, measured: csrc/probe.h.
struct Probes {
  uint64_t (*read)(const uint8_t* p, size_t bytes);        // plain loads
  uint64_t (*read_ahead)(const uint8_t* p, size_t bytes);  // with software prefetch
  size_t (*int8)(size_t rounds, float* sink);              // multiply-adds in registers; returns how many
  size_t (*f32)(size_t rounds, float* sink);
  size_t (*bf16)(size_t rounds, float* sink);  // null: not used on this instruction set
};

enum class Gate { silu, gelu, gelu_tanh, relu };

// What a model does with rows of activations beside products. See kernels/rows.h.
struct RowKernels {
  void (*norm)(const float* x, size_t n, const float* weight, float eps, float* out);
  void (*rope)(float* x, size_t heads, size_t dim, const float* cosines, const float* sines, size_t pairs, bool halves);
  void (*gate)(Gate kind, const float* x, size_t n, float* out);
};

// `bytes` bytes of 16 rows, from where they lie abreast to rows that are `stride` bytes apart, and back.
struct AbreastMoves {
  void (*from)(const uint8_t* panel, size_t bytes, uint8_t* rows, size_t stride);
  void (*to)(const uint8_t* rows, size_t stride, size_t bytes, uint8_t* panel);
};

struct Target {
  const char* name;
  bool (*available)();
  const Kernels* (*kernels)();  // in the order of FEWBIT_FORMATS
  void (*quantize_row)(const float* x, size_t k, Activation* out);
  void (*weigh)(float* s, size_t rows, size_t tokens, KvState* state, float* factors);  // scores to weights
  void (*scale)(const float* x, size_t count, float by, float* out);
  void (*rotate)(const float* x, size_t size, float by, float* out);  // the Hadamard transform, times `by`
  RowKernels rows;
  AbreastMoves abreast;
  const Tiles* tiles;  // null: there are none
  Probes probes;
  const std::atomic<uint64_t>& products;  // calls of the kernels that multiply
};

const std::vector<const Target*>& available_targets();  // best first
const Target& current_target();
void use_target(const std::string& name);  // throws std::invalid_argument if it is not available
const std::vector<std::string>& format_names();
size_t format_number(std::string_view name);  // its place in format_names
// Whether integer dot products can be used for rows of this layout: groups are whole 32s, or one for the row.
bool has_dot(const Kernels& kernels, const Layout& at, size_t k);
// Whether rows of k values can lie abreast: whole spans; with scales at their end, groups that are powers of two.
bool can_lie_abreast(const Kernels& kernels, const Layout& at, size_t k);

}  // namespace fewbit
