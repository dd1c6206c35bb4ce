// Rows of the KV cache: where they lie, and how they are packed.
#pragma once
#include "attention.h"

namespace fewbit {

// The Hadamard transform of a row, times `by`, in runs of the largest power of two that divides it.
void rotate_row(const Target& target, const float* x, size_t dim, float by, float* out);

// Packs what a head keeps of a token.
void write_row(const Store& to, const Heads& heads, bool rotates, const float* x, size_t slot, size_t head);

}  // namespace fewbit
