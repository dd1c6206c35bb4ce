// Products of packed matrices, over rows in parallel. Pointers and sizes have been checked by the caller.
#pragma once
#include "dispatch.h"

namespace fewbit {

struct Matrix {  // n rows of k values
  const Kernels* kernels;
  Layout at;
  const uint8_t* data;
  size_t n, k;
};

size_t activation_count(size_t m, size_t k);  // how many Activations m rows of k values take
void quantize_activations(const float* x, size_t m, size_t k, Activation* out, int threads);
void decode_activations(const Activation* x, size_t m, size_t k, float* out);

void decode(const Matrix& w, float* out, int threads);
void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, const float* importance,
            uint8_t* out, int threads);
// out (m, n) = x (m, k) times the transpose of w.
void linear_exact(const Matrix& w, const float* x, size_t m, float* out, int threads);
void linear_quantized(const Matrix& w, const Activation* x, size_t m, float* out, int threads);
// Quantizes x into memory that is kept for the next call, then multiplies.
void linear(const Matrix& w, const float* x, size_t m, float* out, int threads);

}  // namespace fewbit
