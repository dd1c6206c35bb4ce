// Sampling for Python: sizes, ids and parameters are checked here, logits where they are read.
#include <cmath>
#include <cstring>

#include "bindings.h"
#include "sample.h"

namespace fewbit {
namespace {

using Doubles = Array<const double, 1>;
using MutableInt32s = Array<int32_t, 1>;
using MutableRow = Array<float, 1>;

size_t checked_vocab(size_t vocab) {
  if (vocab == 0 || vocab > INT32_MAX) throw std::invalid_argument("a row of logits has 1 to 2147483647 values");
  return vocab;
}

void expect_tokens(const int32_t* tokens, size_t count, size_t vocab, const std::string& what) {
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || static_cast<size_t>(tokens[i]) >= vocab) {
      throw std::invalid_argument(what + ": " + std::to_string(tokens[i]) + " is not from 0 to " +
                                  std::to_string(vocab - 1));
    }
  }
}

void expect_params(const SamplingParams& params, size_t row) {
  const auto within = [&](double value, double least, double most, const char* name) {
    if (!(value >= least && value <= most)) {
      throw std::invalid_argument("params of row " + std::to_string(row) + ": " + name + " is out of range");
    }
  };
  within(params.temperature, 0, 1e6, "temperature");
  within(params.top_k, 0, INT32_MAX, "top_k");
  within(params.top_p, 0, 1, "top_p");
  within(params.min_p, 0, 1, "min_p");
  within(params.repetition_penalty, 1e-6, 1e6, "repetition_penalty");
  within(params.presence_penalty, -1e6, 1e6, "presence_penalty");
  within(params.frequency_penalty, -1e6, 1e6, "frequency_penalty");
}

// The numbers of all parameters, one after another.
const std::vector<SamplingParams>& params_of(const nb::bytes& packed, size_t rows) {
  static_assert(sizeof(SamplingParams) == 7 * sizeof(double));
  thread_local std::vector<SamplingParams> params;  // kept, so that nothing is allocated again
  expect(packed.size() == times(rows, sizeof(SamplingParams)), "bytes of the params", packed.size(),
         times(rows, sizeof(SamplingParams)));
  params.resize(rows);
  if (rows > 0) std::memcpy(params.data(), packed.c_str(), packed.size());
  for (size_t r = 0; r < rows; ++r) expect_params(params[r], r);
  return params;
}

Seen seen_of(const Int32s& tokens, const Int32s& counts, const Int64s& starts, size_t rows, size_t vocab) {
  expect(counts.size() == tokens.size(), "counts of seen tokens", counts.size(), tokens.size());
  expect_starts(starts, rows, tokens.size(), "starts of seen tokens");
  for (size_t r = 0; r < rows; ++r) {
    const int64_t first = starts.data()[r], end = starts.data()[r + 1];
    const std::string what = first < end ? "seen tokens of row " + std::to_string(r) : "";
    expect_tokens(tokens.data() + first, static_cast<size_t>(end - first), vocab, what);
    for (int64_t i = first; i < end; ++i) {
      if (counts.data()[i] < 0) throw std::invalid_argument(what + ": a count is negative");
    }
  }
  return {tokens.data(), counts.data(), starts.data()};
}

void py_sample(Floats logits, const nb::bytes& packed, Doubles uniforms, std::optional<Int32s> seen,
               std::optional<Int32s> counts, std::optional<Int64s> starts, MutableInt32s tokens, MutableRow logprobs,
               int threads) {
  const size_t rows = logits.shape(0), vocab = checked_vocab(logits.shape(1));
  const std::vector<SamplingParams>& params = params_of(packed, rows);
  expect(uniforms.size() == rows, "uniform numbers", uniforms.size(), rows);
  expect(tokens.size() == rows, "room for tokens", tokens.size(), rows);
  expect(logprobs.size() == rows, "room for log-probabilities", logprobs.size(), rows);
  for (size_t r = 0; r < rows; ++r) {
    const double u = uniforms.data()[r];
    if (!(u >= 0 && u < 1)) {
      throw std::invalid_argument("uniform number of row " + std::to_string(r) + ": " + std::to_string(u) +
                                  " is not at least 0 and less than 1");
    }
  }
  if (seen.has_value() != starts.has_value() || counts.has_value() != starts.has_value()) {
    throw std::invalid_argument("seen tokens come with counts and starts");
  }
  const Seen past = seen ? seen_of(*seen, *counts, *starts, rows, vocab) : Seen{};
  nb::gil_scoped_release release;
  sample({logits.data(), rows, vocab}, params.data(), uniforms.data(), past, tokens.data(), logprobs.data(), threads);
}

void py_log_probabilities(Floats logits, Int32s tokens, MutableRow out, int threads) {
  const size_t rows = logits.shape(0), vocab = checked_vocab(logits.shape(1));
  expect(tokens.size() == rows, "tokens", tokens.size(), rows);
  expect(out.size() == rows, "room for log-probabilities", out.size(), rows);
  for (size_t r = 0; r < rows; ++r) expect_tokens(tokens.data() + r, 1, vocab, "token of row " + std::to_string(r));
  nb::gil_scoped_release release;
  log_probabilities({logits.data(), rows, vocab}, tokens.data(), out.data(), threads);
}

void py_top_tokens(Row logits, MutableInt32s tokens, MutableRow logprobs) {
  const size_t vocab = checked_vocab(logits.size()), count = tokens.size();
  expect(count <= vocab, "tokens wanted, at most", count, vocab);
  expect(logprobs.size() == count, "room for log-probabilities", logprobs.size(), count);
  nb::gil_scoped_release release;
  top_tokens(logits.data(), vocab, count, tokens.data(), logprobs.data());
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample", py_sample, nb::arg("logits"), nb::arg("params"), nb::arg("uniforms"), nb::arg("seen").none(),
        nb::arg("counts").none(), nb::arg("starts").none(), nb::arg("tokens"), nb::arg("logprobs"), nb::arg("threads"),
        "A token for each row of logits, and its log-probability.");
  m.def("log_probabilities", py_log_probabilities, nb::arg("logits"), nb::arg("tokens"), nb::arg("out"),
        nb::arg("threads"), "The log-probability of one token of each row of logits.");
  m.def("top_tokens", py_top_tokens, nb::arg("logits"), nb::arg("tokens"), nb::arg("logprobs"),
        "The likeliest tokens of one row of logits, as many as there is room for.");
}

}  // namespace fewbit
