// Passes over a row of logits that every instruction set shares.
#include "passes.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace fewbit {

float reached_by(float* groups, size_t chunks, size_t k) {
  const size_t some = std::min((2 * k + kLanes - 1) / kLanes, chunks);
  if (k > some * kLanes) return -std::numeric_limits<float>::infinity();
  for (size_t c = some; c < chunks; ++c) {
    float* to = groups + c % some * kLanes;
    for (size_t l = 0; l < kLanes; ++l) to[l] = std::max(to[l], groups[c * kLanes + l]);
  }
  std::nth_element(groups, groups + (k - 1), groups + some * kLanes, std::greater<>());
  return groups[k - 1];
}

}  // namespace fewbit
