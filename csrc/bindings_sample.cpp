// Sampling for Python: sizes, ids and parameters are checked here, logits where they are read.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bindings.h"
#include "sample.h"
#include "sampler_chain.h"

namespace fewbit {
namespace {

using Doubles = Array<const double, 1>;
using MutableInt32s = Array<int32_t, 1>;

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

template <class Number>
TokenNumbers<Number> numbers_of(const std::optional<Int32s>& tokens,
                                const std::optional<Array<const Number, 1>>& numbers,
                                const std::optional<Int64s>& starts, size_t rows, size_t vocab, const char* what) {
  const std::string name = what;
  if (tokens.has_value() != starts.has_value() || numbers.has_value() != starts.has_value()) {
    throw std::invalid_argument(name + ": tokens come with numbers and starts");
  }
  if (!tokens) return {};
  expect(numbers->size() == tokens->size(), "numbers of the " + name, numbers->size(), tokens->size());
  expect_starts(*starts, rows, tokens->size(), "starts of the " + name);
  for (size_t r = 0; r < rows; ++r) {
    const int64_t first = starts->data()[r], end = starts->data()[r + 1];
    if (first == end) continue;
    const std::string of = name + " of row " + std::to_string(r);
    expect_tokens(tokens->data() + first, static_cast<size_t>(end - first), vocab, of);
    for (int64_t i = first; i < end; ++i) {
      const Number number = numbers->data()[i];
      if constexpr (std::is_integral_v<Number>) {
        if (number < 0) throw std::invalid_argument(of + ": a count is negative");
      } else if (!(number < std::numeric_limits<Number>::infinity())) {
        throw std::invalid_argument(of + ": a value is NaN or +infinity");
      }
    }
  }
  return {tokens->data(), numbers->data(), starts->data()};
}

using MaskWords = Array<const uint32_t, 2>;
Masks masks_of(const std::optional<MaskWords>& masks, const std::optional<Int32s>& mask_rows, size_t rows,
               size_t vocab) {
  if (masks.has_value() != mask_rows.has_value()) throw std::invalid_argument("masks come with mask_rows");
  if (!masks) return {};
  const size_t width = (vocab + 31) / 32;
  expect(masks->shape(1) == width, "words of a mask", masks->shape(1), width);
  expect(mask_rows->size() == rows, "mask_rows", mask_rows->size(), rows);
  for (size_t r = 0; r < rows; ++r) {
    const int64_t at = mask_rows->data()[r];
    if (at < -1 || at >= static_cast<int64_t>(masks->shape(0))) {
      throw std::invalid_argument("mask of row " + std::to_string(r) + ": " + std::to_string(at) + " of " +
                                  std::to_string(masks->shape(0)));
    }
  }
  return {masks->data(), width, mask_rows->data()};
}

// As Python has them: numbers of rows, and why.
using Reasons = std::vector<std::pair<size_t, int>>;
Reasons listed(const BadRows& bad) {
  Reasons out;
  for (const auto& [row, why] : bad) out.emplace_back(row, static_cast<int>(why));
  return out;
}

Reasons py_sample(Floats logits, const nb::bytes& packed, Doubles uniforms, std::optional<Int32s> seen,
                  std::optional<Int32s> counts, std::optional<Int64s> starts, std::optional<Int32s> bias_ids,
                  std::optional<Row> bias_values, std::optional<Int64s> bias_starts, std::optional<MaskWords> masks,
                  std::optional<Int32s> mask_rows, MutableInt32s tokens, MutableRow logprobs, int threads) {
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
  const Changes changes{numbers_of<int32_t>(seen, counts, starts, rows, vocab, "seen tokens"),
                        numbers_of<float>(bias_ids, bias_values, bias_starts, rows, vocab, "bias"),
                        masks_of(masks, mask_rows, rows, vocab)};
  const WithoutGil released;
  return listed(sample({logits.data(), rows, vocab}, params.data(), uniforms.data(), changes, tokens.data(),
                       logprobs.data(), threads));
}

Reasons py_log_probabilities(Floats logits, Int32s tokens, MutableRow out, int threads) {
  const size_t rows = logits.shape(0), vocab = checked_vocab(logits.shape(1));
  expect(tokens.size() == rows, "tokens", tokens.size(), rows);
  expect(out.size() == rows, "room for log-probabilities", out.size(), rows);
  for (size_t r = 0; r < rows; ++r) expect_tokens(tokens.data() + r, 1, vocab, "token of row " + std::to_string(r));
  const WithoutGil released;
  return listed(log_probabilities({logits.data(), rows, vocab}, tokens.data(), out.data(), threads));
}

Reasons py_top_tokens(Row logits, MutableInt32s tokens, MutableRow logprobs) {
  const size_t vocab = checked_vocab(logits.size()), count = tokens.size();
  expect(count <= vocab, "number of tokens, at most", count, vocab);
  expect(logprobs.size() == count, "room for log-probabilities", logprobs.size(), count);
  const WithoutGil released;
  return listed(top_tokens(logits.data(), vocab, count, tokens.data(), logprobs.data()));
}

void expect_chain(const ChainParams& params) {
  const auto within = [&](double value, double least, double most, const char* name) {
    if (!(value >= least && value <= most)) throw std::invalid_argument(std::string(name) + " is out of range");
  };
  expect_params(params.usual, 0);
  within(params.typical_p, 0, 1, "typical_p");
  within(params.top_n_sigma, 0, 1e6, "top_n_sigma");
  within(params.excludes, 0, 1, "excludes");
  within(params.xtc_threshold, 0, 1, "xtc_threshold");
  within(params.mirostat, 0, 1, "mirostat");
  within(params.mu, -1e12, 1e12, "mu");
  within(params.dynatemp_range, 0, 1e6, "dynatemp_range");
  within(params.dynatemp_exponent, 0, 1e6, "dynatemp_exponent");
}

// The token and its probability, or a reason in the place of the token, less than 0.
std::pair<int, double> py_sample_chain(Row logits, const nb::bytes& samplers, const nb::bytes& packed, double uniform,
                                       std::optional<Int32s> seen, std::optional<Int32s> counts,
                                       std::optional<Int64s> starts, std::optional<Int32s> bias_ids,
                                       std::optional<Row> bias_values, std::optional<Int64s> bias_starts,
                                       std::optional<MaskWords> masks, std::optional<Int32s> mask_rows,
                                       std::optional<Int32s> dry_ids, std::optional<Row> dry_values,
                                       std::optional<Int64s> dry_starts) {
  const size_t vocab = checked_vocab(logits.size());
  ChainParams params;
  expect(packed.size() == sizeof(params), "bytes of the params", packed.size(), sizeof(params));
  std::memcpy(&params, packed.c_str(), sizeof(params));
  expect_chain(params);
  if (!(uniform >= 0 && uniform < 1)) throw std::invalid_argument("the uniform number is not from [0, 1)");
  std::vector<ChainSampler> order;
  for (size_t i = 0; i < samplers.size(); ++i) {
    const auto number = static_cast<unsigned char>(samplers.c_str()[i]);
    expect(number < kChainSamplers, "number of a sampler, below", number, kChainSamplers);
    order.push_back(static_cast<ChainSampler>(number));
  }
  const Changes changes{numbers_of<int32_t>(seen, counts, starts, 1, vocab, "seen tokens"),
                        numbers_of<float>(bias_ids, bias_values, bias_starts, 1, vocab, "bias"),
                        masks_of(masks, mask_rows, 1, vocab)};
  const auto dry = numbers_of<float>(dry_ids, dry_values, dry_starts, 1, vocab, "dry");
  const WithoutGil released;
  ChainToken out{};
  const auto bad = sample_chain({logits.data(), vocab, order.data(), order.size(), params, uniform, changes, dry}, out);
  return bad ? std::pair{-static_cast<int>(*bad), 0.0} : std::pair{static_cast<int>(out.token), out.probability};
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample", py_sample, OneTarget(), nb::arg("logits"), nb::arg("params"), nb::arg("uniforms"),
        nb::arg("seen").none(), nb::arg("counts").none(), nb::arg("starts").none(), nb::arg("bias_ids").none(),
        nb::arg("bias_values").none(), nb::arg("bias_starts").none(), nb::arg("masks").none(),
        nb::arg("mask_rows").none(), nb::arg("tokens"), nb::arg("logprobs"), nb::arg("threads"),
        "A token for each row of logits, and its log-probability; returns the rows that have none, and why.");
  m.def("sample_chain", py_sample_chain, OneTarget(), nb::arg("logits"), nb::arg("samplers"), nb::arg("params"),
        nb::arg("uniform"), nb::arg("seen").none(), nb::arg("counts").none(), nb::arg("starts").none(),
        nb::arg("bias_ids").none(), nb::arg("bias_values").none(), nb::arg("bias_starts").none(),
        nb::arg("masks").none(), nb::arg("mask_rows").none(), nb::arg("dry_ids").none(), nb::arg("dry_values").none(),
        nb::arg("dry_starts").none(),
        "The token that a chain of samplers draws from a row of logits, and its probability among those left; a token "
        "below 0 is a reason why there is none.");
  m.def("log_probabilities", py_log_probabilities, OneTarget(), nb::arg("logits"), nb::arg("tokens"), nb::arg("out"),
        nb::arg("threads"),
        "The log-probability of one token of each row of logits; returns the rows that have none, and why.");
  m.def("top_tokens", py_top_tokens, OneTarget(), nb::arg("logits"), nb::arg("tokens"), nb::arg("logprobs"),
        "The likeliest tokens of one row of logits, as many as there is room for; returns what is wrong with the row.");
}

}  // namespace fewbit
