// Activations in the forms that products read. Pointers and sizes have been checked by the caller.
#pragma once
#include "dispatch.h"

namespace fewbit {

// How activations enter a product. Matrix tiles take them in bf16, unless exact.
enum class Activations {
  usual,  // what `choose` takes: today int8
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
};

constexpr size_t kTileBytes = 8192;  // of a k-block of 16 columns

inline size_t k_blocks_of(size_t k) { return (k + kBlockK - 1) / kBlockK; }
size_t activation_count(size_t m, size_t k);  // how many Activations m rows of k values take in 8 bits
size_t tile_elements(size_t m, size_t k);     // how many 16-bit numbers they take as tiles

// In 8 bits, or `twice`, in 16: each row, and after it what that loses of it. One row, then many.
void quantize_row(const float* x, size_t k, bool twice, Activation* out);
void quantize_activations(const float* x, size_t m, size_t k, bool twice, Activation* out, int threads);
void decode_activations(const Activation* x, size_t m, size_t k, bool twice, float* out);
void pack_tiles(const float* x, size_t m, size_t k, uint16_t* out, int threads);
void unpack_tiles(const uint16_t* x, size_t m, size_t k, float* out);

}  // namespace fewbit
