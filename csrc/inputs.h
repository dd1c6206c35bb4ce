// Activations in the forms that products read. Pointers and sizes have been checked by the caller.
#pragma once
#include <algorithm>

#include "dispatch.h"

namespace fewbit {

// How activations enter a product, the more exact the later. Matrix tiles take them in bf16, unless exact.
enum class Activations {
  usual,  // int16 for few rows where that costs little (ProductTable::int16_rows), else int8
  int8,   // with a scale for every 32
  int16,  // as two rows of 8 bits: a row, and what 8 bits lose of it
  exact,  // as floats
};

// The root mean square norm of a row, times a weight for each value; `out` takes the result.
struct Norm {
  const float* weight = nullptr;  // null: rows are taken as they are
  float eps = 0;
  float* out = nullptr;
};

// m rows of k values. What is null has not been made.
struct Inputs {
  size_t m, k;
  const float* x = nullptr;
  Norm norm{};  // of x, before anything else
  const Activation* q8 = nullptr;
  const Activation* q16 = nullptr;  // two rows for each
  const uint16_t* tiles = nullptr;
  bool alone = false;  // each row is multiplied as if there were no others: the same bits in every batch
};

constexpr size_t kTileBytes = 8192;  // of a k-block of 16 columns

inline size_t k_blocks_of(size_t k) { return (k + kBlockK - 1) / kBlockK; }
size_t activation_count(size_t m, size_t k);  // how many Activations m rows of k values take in 8 bits
size_t tile_elements(size_t m, size_t k);     // how many 16-bit numbers they take as tiles

// Products take this many rows at once: more would make nothing faster, only what is packed of them larger.
constexpr size_t kMostRows = 4096;
inline bool is_too_long(const Inputs& in) { return in.m > kMostRows && !in.tiles; }  // tiles lie column by column

// Calls f(first, inputs) for parts of the rows, each about as long.
template <class Fn>
void by_parts(const Inputs& in, Fn&& f) {
  const size_t parts = (in.m + kMostRows - 1) / kMostRows, each = ((in.m + parts - 1) / parts + 15) / 16 * 16;
  for (size_t first = 0; first < in.m; first += each) {
    Inputs some = in;
    some.m = std::min(each, in.m - first);
    if (in.x) some.x += first * in.k;
    if (in.norm.weight) some.norm.out += first * in.k;
    if (in.q8) some.q8 += first * k_blocks_of(in.k);
    if (in.q16) some.q16 += 2 * first * k_blocks_of(in.k);
    f(first, some);
  }
}

// In 8 bits, or `twice`, in 16: each row, and after it what that loses of it. One row, then many.
void quantize_row(const float* x, size_t k, bool twice, Activation* out);
void quantize_activations(const float* x, size_t m, size_t k, bool twice, Activation* out, int threads);
void decode_activations(const Activation* x, size_t m, size_t k, bool twice, float* out);
void pack_tiles(const float* x, size_t m, size_t k, uint16_t* out, int threads);
void unpack_tiles(const uint16_t* x, size_t m, size_t k, float* out);

}  // namespace fewbit
