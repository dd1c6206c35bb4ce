// Products of packed matrices, over rows in parallel. Pointers and sizes have been checked by the caller.
#pragma once
#include <span>

#include "inputs.h"

namespace fewbit {

struct Matrix {  // n rows of k values
  const Kernels* kernels;
  Layout at;
  const uint8_t* data;
  size_t n, k;
};

// How a product is made. `choose` tells which for m rows of activations; the limits are measured, see docs/log.md.
enum class Path {
  exact,   // rows decoded to floats
  gemv,    // a row or a panel at a time, 8-bit activations
  micro,   // a micro-kernel over panels that are unpacked: a row in each lane, 8-bit activations
  skinny,  // matrix tiles over panels, 8-bit activations
  fused,   // matrix tiles, bf16; decoding and multiplying at once
  packed,  // matrix tiles, bf16; decoding, then multiplying
};
struct Way {
  Path path;
  bool twice;  // activations in 16 bits: two columns for each row of them
};
constexpr size_t kInterleaved = 16, kCopied = 64;  // interleaved rows; those that are copied or read alternately
constexpr size_t kMostSkinny = 8;                  // columns of a set of the skinny GEMM
inline bool in_bf16(Path path) { return path == Path::fused || path == Path::packed; }
Way choose(const Kernels& kernels, const Layout& at, size_t k, size_t m, Activations activations);
bool has_panel_kernel(const Matrix& w, Path path);  // whether there is one that reads the panels of w
// Rows a piece: small enough to share evenly, large enough to be worth a call, a multiple of what the kernel takes.
size_t grain(Path path, const Matrix& w, int threads);
const char* path_name(Path path);
const char* inputs_name(Way way);  // f32, q8, q16 or bf16

// out (m, n) = inputs times the transpose of w, plus bias (n) and residual (m, n) where there are any. With a gate:
// out = kind(inputs times the transpose of `gate`) * that.
struct Product {
  Matrix w;
  float* out;
  const float* bias = nullptr;
  const float* residual = nullptr;
  Matrix gate{};
  Gate kind{};
};
struct Group {  // inputs, and how many of the products that follow take them
  Inputs in;
  size_t products;
};

void decode(const Matrix& w, float* out, int threads);
// out (m, k) = grad (m, n) times w, in floats: the gradient of the inputs of a product.
void multiply_transposed(const Matrix& w, const float* grad, size_t m, float* out, int threads);
// Rows first to first + count as floats; of interleaved ones, `first` is a multiple of 16.
void decode_rows(const Matrix& w, size_t first, size_t count, float* out);
// Interleaves rows, 16 of them together, or goes back (`back`). What is left of n rows stays as it is. `w`
// says how they shall lie, or do; `out` holds as many bytes.
void interleave(const Matrix& w, bool back, uint8_t* out, int threads);
// The importance of values: null, or k weights for each row; `stride` is 0 where all rows have the same.
struct Importance {
  const float* data;
  size_t stride;
};
void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, Importance weights,
            uint8_t* out, int threads);

// Several products of the same inputs. Forms that are missing are made in memory that is kept for the next call.
void multiply(std::span<const Product> products, Inputs inputs, Activations activations, int threads);
// The same of several inputs, each with some of the products, in the same order.
void multiply(std::span<const Group> groups, std::span<const Product> products, Activations activations, int threads);
// Some sets of 16 rows of a product of one row of inputs: out[row], for the rows of `sets` alone.
void multiply_sets(const Matrix& w, const Inputs& inputs, Activations activations, std::span<const size_t> sets,
                   float* out, int threads);
// out (m, n) = gate(inputs times the transpose of `gate`) * (inputs times the transpose of `up`).
inline void multiply_gated(const Matrix& gate, const Matrix& up, Gate kind, Inputs inputs, float* out,
                           Activations activations, int threads) {
  const Product product{up, out, nullptr, nullptr, gate, kind};
  multiply({&product, 1}, inputs, activations, threads);
}

}  // namespace fewbit
