// Runs a chain of samplers, in the caller's order, over a copy of the row.
#include "sampler_chain.h"

#include <algorithm>
#include <cmath>

#include "chain_candidates.h"
#include "dispatch.h"
#include "logit_changes.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr double kColdest = 1e-30;  // temperature; what is colder changes nothing

thread_local ThreadWorkspace chain_row, chain_marks;

double temperature_of(const ChainParams& params, ChainCandidates& left) {
  const double middle = params.usual.temperature, range = params.dynatemp_range;
  if (range <= 0) return middle;
  const double least = std::max(0.0, middle - range), share = left.entropy_share();
  return share < 0 ? least : least + (middle + range - least) * std::pow(share, params.dynatemp_exponent);
}

void subtract(const TokenNumbers<float>& dry, float* row) {
  for (size_t i = 0; i < dry.count(0); ++i) {
    float& logit = row[dry.tokens[i]];
    if (logit != kNoLogit) logit -= dry.numbers[i];
  }
}

void cool(const ChainParams& params, ChainCandidates& left) {
  const double temperature = temperature_of(params, left);
  if (temperature == 0)
    left.keep_top(1);
  else if (temperature != 1)
    left.scale(1 / std::max(temperature, kColdest));
}

void run(ChainSampler sampler, const ChainInput& in, ChainCandidates& left) {
  const SamplingParams& usual = in.params.usual;
  const auto& seen = in.changes.seen;
  switch (sampler) {
    case ChainSampler::penalties:
      if (penalizes(usual) && seen.count(0) > 0) penalize(usual, seen.tokens, seen.numbers, seen.count(0), left.row());
      break;
    case ChainSampler::dry:
      if (in.dry.count(0) > 0) subtract(in.dry, left.row());
      break;
    case ChainSampler::top_n_sigma:
      if (in.params.top_n_sigma > 0) left.keep_n_sigma(in.params.top_n_sigma);
      break;
    case ChainSampler::top_k:
      if (usual.top_k > 0) left.keep_top(static_cast<size_t>(usual.top_k));
      break;
    case ChainSampler::temperature: cool(in.params, left); break;
    case ChainSampler::typical_p:
      if (in.params.typical_p < 1) left.keep_typical(in.params.typical_p);
      break;
    case ChainSampler::top_p:
      if (usual.top_p < 1) left.keep_share(usual.top_p);
      break;
    case ChainSampler::min_p:
      if (usual.min_p > 0) left.keep_likely(usual.min_p);
      break;
    case ChainSampler::xtc:
      if (in.params.excludes > 0) left.drop_likely(in.params.xtc_threshold);
      break;
  }
}

// A copy of the row, with mask and bias.
float* changed(const ChainInput& in) {
  const auto& bias = in.changes.bias;
  const auto& seen = in.changes.seen;
  refuse_twice(seen.tokens, seen.count(0), in.vocab, "seen tokens", 0, chain_marks);
  refuse_twice(bias.tokens, bias.count(0), in.vocab, "bias", 0, chain_marks);
  float* out = chain_row.get<float>(in.vocab);
  if (const uint32_t* mask = in.changes.masks.of(0))
    apply_mask(in.logits, in.vocab, mask, out);
  else
    std::copy_n(in.logits, in.vocab, out);
  add_bias(bias.tokens, bias.numbers, bias.count(0), out);
  return out;
}

bool is_valid(const float* x, size_t n) {
  float* groups = chain_row.get<float>((n + kChunk - 1) / kChunk * kLanes);
  return current_target().rows.passes.scan(x, n, groups).valid;
}

}  // namespace

std::optional<BadRow> sample_chain(const ChainInput& in, ChainToken& out) {
  if (!is_valid(in.logits, in.vocab)) return BadRow::bad_logits;
  ChainCandidates left(changed(in), in.vocab);
  const bool is_mirostat = in.params.mirostat > 0;
  for (size_t i = 0; i < in.num_samplers; ++i) {
    if (left.empty()) return BadRow::nothing_allowed;
    const ChainSampler one = in.samplers[i];
    const bool is_beside =
        one == ChainSampler::penalties || one == ChainSampler::dry || one == ChainSampler::temperature;
    if (!is_mirostat || is_beside) run(one, in, left);
  }
  if (left.empty()) return BadRow::nothing_allowed;
  if (is_mirostat) left.keep_surprise(in.params.mu);
  Key key;
  out.probability = left.draw(in.uniform, key);
  out.token = id_of(key);
  return std::nullopt;
}

}  // namespace fewbit
