// Logits: in 8 bits for the whole vocabulary, and in 16 bits for those that can be among the largest.
#pragma once
#include "linear.h"

namespace fewbit {

// The L2 norm of each row of w. Times the norm of an error in x, it bounds the error of a logit.
void row_norms(const Matrix& w, float* out, int threads);

// out (m, n) = inputs times the transpose of w. The tops[r] largest logits of row r are those of 16-bit activations,
// bit for bit as in a product of that row alone; all others are smaller, but may be those of 8 bits. tops[r] = 0: all
// of them. False, and nothing is done, where that would gain nothing.
bool multiply_largest(const Matrix& w, const float* norms, const Inputs& inputs, const int32_t* tops, float* out,
                      int threads);

}  // namespace fewbit
