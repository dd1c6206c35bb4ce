// Products of packed matrices, over rows in parallel. Pointers and sizes have been checked by the caller.
#pragma once
#include <span>

#include "dispatch.h"

namespace fewbit {

struct Matrix {  // n rows of k values
  const Kernels* kernels;
  Layout at;
  const uint8_t* data;
  size_t n, k;
};

// How a product is made. `choose` tells which for a number of columns; the limits are measured, see docs/log.md.
enum class Path {
  exact,   // rows decoded to floats
  dot,     // a row at a time, 8-bit activations
  lanes,   // a row in each lane, 8-bit activations
  few,     // matrix tiles, 8-bit activations
  strips,  // matrix tiles, bf16; decoding and multiplying at once
  panels,  // matrix tiles, bf16; decoding, then multiplying
};
Path choose(const Kernels& kernels, const Layout& at, size_t k, size_t m);
const char* path_name(Path path);

// The root mean square norm of a row, times a weight for each value; `out` takes the result.
struct Norm {
  const float* weight = nullptr;  // null: rows are taken as they are
  float eps = 0;
  float* out = nullptr;
};

// Activations, m rows of k values, in the forms that products want. What is null has not been made.
struct Inputs {
  size_t m, k;
  const float* x = nullptr;
  Norm norm{};        // of x, before anything else
  bool fine = false;  // a few rows in 16 bits, not in 8
  const Activation* q8 = nullptr;
  const uint16_t* tiles = nullptr;
};

// out (m, n) = inputs times the transpose of w, plus bias (n) and residual (m, n) where there are any.
struct Product {
  Matrix w;
  float* out;
  const float* bias = nullptr;
  const float* residual = nullptr;
};

size_t activation_count(size_t m, size_t k);  // how many Activations m rows of k values take
size_t tile_elements(size_t m, size_t k);     // how many 16-bit numbers they take as tiles
bool wants_tiles(size_t m);                   // whether products of m columns read tiles on the target in use
void quantize_activations(const float* x, size_t m, size_t k, Activation* out, int threads);
void pack_tiles(const float* x, size_t m, size_t k, uint16_t* out, int threads);
void decode_activations(const Activation* x, size_t m, size_t k, float* out);
void unpack_tiles(const uint16_t* x, size_t m, size_t k, float* out);

void decode(const Matrix& w, float* out, int threads);
// Rows to where they lie abreast, 16 of them together, and back (`back`). What is left of n rows stays as it is. `w`
// says how they shall lie, or do; `out` holds as many bytes.
void move_abreast(const Matrix& w, bool back, uint8_t* out, int threads);
void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, const float* importance,
            uint8_t* out, int threads);

// Several products of the same inputs. Forms that are missing are made in memory that is kept for the next call.
void multiply(std::span<const Product> products, Inputs inputs, bool exact, int threads);
// out (m, n) = gate(inputs times the transpose of `gate`) * (inputs times the transpose of `up`).
void multiply_gated(const Matrix& gate, const Matrix& up, Gate kind, Inputs inputs, float* out, bool exact,
                    int threads);

}  // namespace fewbit
