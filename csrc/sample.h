// Sampling the next token from rows of logits. Pointers, sizes and parameters have been checked by the caller; logits
// are checked here, and std::invalid_argument says which row cannot be used. src/fewbit/ops/sampling.py tells what each
// stage does, slowly.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fewbit {

struct SamplingParams {
  double temperature;  // 0: the likeliest token
  double top_k;        // an integer; 0: all
  double top_p, min_p;
  double repetition_penalty, presence_penalty, frequency_penalty;
};

struct LogitRows {
  const float* data;
  size_t count, vocab;
};

// Distinct tokens of each row, one row after another. A count is how often the token is in the answer.
struct Seen {
  const int32_t* tokens;
  const int32_t* counts;
  const int64_t* starts;  // null: no row has any
};

// A token for each row, and its log-probability by the row itself: no penalty, no temperature.
void sample(const LogitRows& rows, const SamplingParams* params, const double* uniforms, const Seen& seen,
            int32_t* tokens, float* logprobs, int threads);

// The log-probability of one token of each row.
void log_probabilities(const LogitRows& rows, const int32_t* tokens, float* out, int threads);

// The likeliest tokens of one row, likeliest first.
void top_tokens(const float* row, size_t vocab, size_t count, int32_t* tokens, float* logprobs);

}  // namespace fewbit
