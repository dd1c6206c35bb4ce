// A chain of samplers over one row of logits, in the caller's order. src/fewbit/ops/samplers.py tells what each does,
// slowly. Sizes and parameters have been checked by the caller; logits are checked here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "sample.h"

namespace fewbit {

// In the order of `SAMPLERS` in ops/samplers.py.
enum class ChainSampler : uint8_t {
  penalties,
  dry,
  top_n_sigma,
  top_k,
  temperature,
  typical_p,
  top_p,
  min_p,
  xtc,
};
constexpr size_t kChainSamplers = 9;

struct ChainParams {
  SamplingParams usual;
  double typical_p;
  double top_n_sigma;  // 0: off
  double excludes;     // XTC, for this token: 1 or 0
  double xtc_threshold;
  double mirostat;  // 1: on, 0: off
  double mu;        // of Mirostat
  double dynatemp_range, dynatemp_exponent;
};

struct ChainInput {
  const float* logits;
  size_t vocab;
  const ChainSampler* samplers;
  size_t num_samplers;
  const ChainParams& params;
  double uniform;
  const Changes& changes;   // of row 0
  TokenNumbers<float> dry;  // what is subtracted from logits
};

struct ChainToken {
  int32_t token;
  double probability;  // among the tokens that were left
};

// The token that a chain samples; a reason if there is none.
std::optional<BadRow> sample_chain(const ChainInput& in, ChainToken& out);

}  // namespace fewbit
