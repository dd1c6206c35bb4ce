// Passes over a row of logits that every instruction set shares.
#include "passes.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>

#include "targets/prelude.h"

namespace fewbit::passes_scalar {
#include "kernels/passes.h"
}

#if defined(__x86_64__)
FEWBIT_BEGIN_TARGET(FEWBIT_AVX2)
namespace fewbit::passes_avx2 {
#include "kernels/passes.h"
}
FEWBIT_END_TARGET

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512BW)
namespace fewbit::passes_avx512 {
#include "kernels/passes.h"
}
FEWBIT_END_TARGET
#endif

namespace fewbit {

const Passes& current_passes() {
#if defined(__x86_64__)
  const std::string_view name = current_target().name;
  if (name == "amx" || name == "avx512" || name == "avx512bw") return passes_avx512::passes;
  if (name == "avx2") return passes_avx2::passes;
#endif
  return passes_scalar::passes;
}

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

float weight_of(float logit, const WeightScale& scale) { return passes_scalar::exp_of((logit - scale.top) * scale.by); }

}  // namespace fewbit
