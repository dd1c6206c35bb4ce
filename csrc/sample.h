// Sampling the next token from rows of logits. Pointers, sizes and parameters have been checked by the caller; logits
// are checked here: rows that nothing can be sampled from are named, the others are sampled all the same.
// src/fewbit/ops/sampling.py tells what each stage does, slowly.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

// Distinct tokens of each row, and a number for each, one row after another.
template <class Number>
struct TokenNumbers {
  const int32_t* tokens = nullptr;
  const Number* numbers = nullptr;
  const int64_t* starts = nullptr;  // null: no row has any

  size_t first(size_t row) const { return starts ? static_cast<size_t>(starts[row]) : 0; }
  size_t count(size_t row) const { return starts ? static_cast<size_t>(starts[row + 1] - starts[row]) : 0; }
};

// Bit i % 32 of word i / 32 of a mask is set where token i may be sampled.
struct Masks {
  const uint32_t* words = nullptr;
  size_t width = 0;               // words of a mask
  const int32_t* rows = nullptr;  // the mask of each row, or -1; null: no row has one

  const uint32_t* of(size_t row) const {
    return rows && rows[row] >= 0 ? words + static_cast<size_t>(rows[row]) * width : nullptr;
  }
};

// What changes the logits of rows before a token is sampled.
struct Changes {
  TokenNumbers<int32_t> seen;  // how often each token is in the output
  TokenNumbers<float> bias;
  Masks masks;
};

// Why nothing can be sampled from a row.
enum class BadRow { bad_logits = 1, no_logits = 2, nothing_allowed = 3 };
using BadRows = std::vector<std::pair<size_t, BadRow>>;  // in the order of rows

// A token for each row, and its log-probability by the row itself: no bias, mask, penalty or temperature.
BadRows sample(const LogitRows& rows, const SamplingParams* params, const double* uniforms, const Changes& changes,
               int32_t* tokens, float* logprobs, int threads);

// The log-probability of one token of each row.
BadRows log_probabilities(const LogitRows& rows, const int32_t* tokens, float* out, int threads);

// The likeliest tokens of one row, likeliest first.
BadRows top_tokens(const float* row, size_t vocab, size_t count, int32_t* tokens, float* logprobs);

}  // namespace fewbit
