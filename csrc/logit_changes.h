// What is done to a copy of a row of logits before tokens are ranked: a mask, a bias, penalties of tokens seen before.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "sample.h"
#include "workspace.h"

namespace fewbit {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

inline float limited(double logit) {
  constexpr double most = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(logit, -most, most));
}

// `marks` is memory for a bit for each token.
inline void refuse_twice(const int32_t* tokens, size_t count, size_t vocab, const char* what, size_t row,
                         ThreadWorkspace& marks) {
  if (count == 0) return;
  auto* seen = marks.get<uint64_t>(vocab / 64 + 1);
  std::fill_n(seen, vocab / 64 + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<size_t>(tokens[i]);
    if (seen[token / 64] >> token % 64 & 1) {
      throw std::invalid_argument(std::string(what) + " of row " + std::to_string(row) + ": a token is given twice");
    }
    seen[token / 64] |= uint64_t{1} << token % 64;
  }
}

// x where a mask has a bit, -inf elsewhere. Most words of a mask are all 0 or all 1.
inline void apply_mask(const float* x, size_t n, const uint32_t* mask, float* out) {
  for (size_t i = 0; i < n; i += 32) {
    const uint32_t word = mask[i / 32];
    const size_t count = std::min<size_t>(32, n - i);
    if (word == ~uint32_t{0}) {
      std::copy_n(x + i, count, out + i);
    } else if (word == 0) {
      std::fill_n(out + i, count, kNoLogit);
    } else {
      for (size_t bit = 0; bit < count; ++bit) out[i + bit] = word >> bit & 1 ? x[i + bit] : kNoLogit;
    }
  }
}

inline void add_bias(const int32_t* tokens, const float* values, size_t count, float* logits) {
  for (size_t i = 0; i < count; ++i) {
    float& logit = logits[tokens[i]];
    if (logit == kNoLogit) continue;
    logit = values[i] == kNoLogit ? kNoLogit : limited(static_cast<double>(logit) + static_cast<double>(values[i]));
  }
}

inline bool penalizes(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

inline void penalize(const SamplingParams& params, const int32_t* tokens, const int32_t* counts, size_t count,
                     float* logits) {
  for (size_t i = 0; i < count; ++i) {
    float& logit = logits[tokens[i]];
    if (logit == kNoLogit) continue;
    double v = logit;
    v = v > 0 ? v / params.repetition_penalty : v * params.repetition_penalty;
    logit = limited(v - ((counts[i] > 0 ? params.presence_penalty : 0) + params.frequency_penalty * counts[i]));
  }
}

}  // namespace fewbit
