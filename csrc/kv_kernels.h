// What attention needs of a target: functions over rows of the KV cache, for each format, and what the target can do
// beside them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fewbit {

constexpr size_t kKvTokens = 32;      // at once: the pitch of scores
constexpr size_t kSkinnyQueries = 8;  // of queries; up to so many, K and V are decoded where they are used

struct KvState {  // of a query: the largest logit, and the sum of weights beside it
  float max, sum;
};

// What will be read next, as large as what is read now, and after that, from two streams half as much; null: nothing.
struct KvPrefetch {
  const uint8_t *next = nullptr, *later[2] = {};
};

// K or V of some tokens of a head, as rows or as a slab (kernels/kv_tiled.h); where those lie that come next, and after
// them.
struct KvBlockRows {
  const uint8_t* data = nullptr;
  size_t tokens = 0, row_bytes = 0;
  size_t dim = 0, pad = 0;  // values of a row, and of a row of floats
  bool tiled = false;
  const uint8_t *next = nullptr, *later = nullptr;
};

struct Kernels;
struct KvKernels;

// A step of attention of up to kSkinnyQueries queries over integers: scores of some keys, and sums of the values of the
// block before them, so that one has work to do while the other waits. Either may have no tokens.
struct IntegerStep {
  const KvKernels *k, *v;
  KvBlockRows keys, values;
  const void* queries;  // of the head of the keys, as `pack_queries` left them
  size_t rows;
  float* scores;  // [row][kKvTokens]: the weights of the values, then the scores of the keys
  float* sums;    // of the head of the values, rows of `values.pad`
};

// What attention does with rows of one format; null where it cannot be used there. See kernels/kv.h.
struct KvKernels {
  size_t block;  // values that a row is padded to: 1 or 32
  void (*scores)(const float* q, size_t rows, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes,
                 size_t dim, KvPrefetch to_prefetch, float* s);
  void (*values)(const float* p, size_t rows, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
                 KvPrefetch to_prefetch, float* out, size_t stride);
  void (*floats)(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, KvPrefetch to_prefetch, float* out,
                 size_t stride);
  // Queries for keys that are taken as integers, and what a format has to do in a step; null where a target has no
  // IntegerAttention, or the format no integers.
  void (*pack_queries)(const float* q, size_t rows, size_t pad, void* out) = nullptr;
  void (*integer_keys)(const IntegerStep& step) = nullptr;
  void (*integer_values)(const IntegerStep& step) = nullptr;
  // A row to and from its place in a slab of 32: kernels/kv_tiled.h.
  void (*to_tiled)(const uint8_t* row, size_t token, size_t dim, bool is_value, uint8_t* slab) = nullptr;
  void (*from_tiled)(const uint8_t* slab, size_t token, size_t dim, bool is_value, uint8_t* row) = nullptr;
  bool prefers_tiled = false;  // the target reads slabs faster than rows, and has the two below
  void (*tiled_floats)(const uint8_t* slab, size_t tokens, size_t dim, bool is_value, float* out,
                       size_t stride) = nullptr;
  // Floats straight to their place in a slab; false if they have to be packed first.
  bool (*quick_to_tiled)(const float* x, size_t token, size_t dim, bool is_value, uint8_t* slab) = nullptr;
};

constexpr size_t kMostTiledDim = 256;
inline bool can_tile(const KvKernels& kernels, size_t dim) {
  return kernels.to_tiled && dim > 0 && dim % 64 == 0 && dim <= kMostTiledDim;
}

// Units that have to be set up for a piece of work: `work` is called with `what` while they are.
using WithUnits = void (*)(void (*work)(void*), void* what);

// Attention of up to kSkinnyQueries queries over K and V as the integers that they are packed as, queries and weights
// in 16 bits: over slabs of formats that `prefers_tiled`, over rows of others.
struct IntegerAttention {
  size_t most_dim, least_page_tokens;
  bool is_exact;                      // enough to serve who wants exact results
  size_t (*query_bytes)(size_t pad);  // of packed queries of a head; the memory is 0 when it is new
  void (*step)(const IntegerStep& step);
  WithUnits with_units;
};

// Attention of many queries as products of matrices, K and V decoded to rows of `pad` floats, a multiple of 32. Rows of
// queries, scores and sums are multiples of kMatrixRows in memory: what lies past the last may be computed, too.
constexpr size_t kMatrixRows = 32;
struct MatrixAttention {
  size_t most_rows;  // of a piece of work
  size_t (*scratch_bytes)(size_t rows, size_t pad);
  void (*pack_queries)(const float* q, size_t rows, size_t pad, void* scratch);
  void (*scores)(const float* k, size_t rows, size_t tokens, size_t pad, void* scratch, float* s);
  void (*values)(const float* p, size_t rows, const float* v, size_t tokens, size_t pad, void* scratch, float* out);
  void (*between)();  // to be called now and then between them
  WithUnits with_units;
};

// The table of an instruction set; null where there is no such attention.
struct KvTable {
  void (*add)(Kernels* by_format);
  void (*weigh)(float* s, size_t rows, size_t tokens, KvState* state, float* factors);  // scores to weights
  const IntegerAttention* integers = nullptr;
  const MatrixAttention* matrix = nullptr;
  const MatrixAttention* exact_matrix = nullptr;  // in floats, for who wants exact results
};

}  // namespace fewbit
