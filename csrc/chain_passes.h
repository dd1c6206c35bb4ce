// Passes over a row of logits that chains of samplers need beside those of passes.h. Plain loops over lanes, compiled
// once: they run rarely.
#pragma once
#include <cstddef>

#include "passes.h"

namespace fewbit {

// Of the finite logits of a row: weights, weights times their logarithms, how many there are.
struct WeightSums {
  double total, weighted;
  size_t count;
};

// Of the finite logits less `top`: their sum, that of their squares, how many there are.
struct Deviation {
  double sum, squares;
  size_t count;
};

WeightSums weigh(const float* x, size_t n, const WeightScale& scale);
Deviation deviation(const float* x, size_t n, float top);
void drop_below(float* x, size_t n, float least);  // logits below it become -infinity

}  // namespace fewbit
