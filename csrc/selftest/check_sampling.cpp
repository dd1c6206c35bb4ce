// Sampling: every instruction set gives the same bits.
#include <cmath>
#include <limits>

#include "sample.h"
#include "sampler_chain.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr size_t kVocabs[] = {1, 63, 64, 65, 333, 1024, 3001};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats logits(Random& random, size_t n) {
  const float size = random.uniform(0.1f, 20);
  Floats out = normals(random, n);
  for (float& v : out) v = random.below(50) == 0 ? -kInfinity : size * v;
  out[random.below(n)] = size;
  return out;
}

constexpr SamplingParams kParams[] = {
    {0, 0, 1, 0, 1, 0, 0},           {1, 0, 1, 0, 1, 0, 0},      {0.7, 40, 0.9, 0.05, 1, 0, 0},
    {1.5, 0, 0.8, 0, 1.3, 0.2, 0.1}, {1, 900, 0.99, 0, 1, 0, 0}, {0.3, 0, 1, 0.1, 1, 0, 0},
};
constexpr size_t kRows = std::size(kParams);

struct Sampled {
  std::vector<int32_t> tokens;
  Floats logprobs;
  BadRows bad;
};
Sampled sampled(const Target& target, const Guarded<float>& x, size_t n, const double* uniforms, int threads) {
  const Using used(target);
  Sampled out{std::vector<int32_t>(kRows), Floats(kRows), {}};
  const int32_t tokens[] = {0, 0}, counts[] = {2, 1};
  const float values[] = {-1, 2};
  const int64_t seen_starts[kRows + 1] = {0, 1, 1, 1, 2, 2, 2}, bias_starts[kRows + 1] = {0, 0, 1, 1, 2, 2, 2};
  const std::vector<uint32_t> mask((n + 31) / 32, 0xF00FFFFF);
  const int32_t mask_rows[kRows] = {-1, -1, 0, 0, -1, -1};
  const Changes changes{
      {tokens, counts, seen_starts}, {tokens, values, bias_starts}, {mask.data(), mask.size(), mask_rows}};
  out.bad = sample({x.data(), kRows, n}, kParams, uniforms, changes, out.tokens.data(), out.logprobs.data(), threads);
  return out;
}

void sample_case(Run& run, size_t n) {
  const Edge edge = run.edge();
  run.at("%zu rows of %zu logits, guard at the %s", kRows, n, edge_name(edge));
  Floats rows;
  double uniforms[kRows];
  for (double& u : uniforms) {
    const Floats row = logits(run.random, n);
    rows.insert(rows.end(), row.begin(), row.end());
    u = static_cast<double>(run.random.uniform());
  }
  const Guarded<float> x(rows, edge);
  const Sampled own = sampled(run.target, x, n, uniforms, run.threads()),
                expected = sampled(run.scalar, x, n, uniforms, 1);
  run.expect(own.tokens == expected.tokens && own.bad == expected.bad, "other tokens");
  run.expect(same_floats(own.logprobs, expected.logprobs), "other probabilities");
}

constexpr ChainSampler kDefault[] = {
    ChainSampler::penalties, ChainSampler::dry,         ChainSampler::top_n_sigma,
    ChainSampler::top_k,     ChainSampler::temperature, ChainSampler::typical_p,
    ChainSampler::top_p,     ChainSampler::min_p,       ChainSampler::xtc,
};
constexpr ChainParams kChains[] = {
    {kParams[2], 0.7, 2, 1, 0.05, 0, 0, 0.5, 1}, {kParams[1], 0.9, 0, 0, 0, 0, 0, 0, 1},
    {kParams[1], 1, 1, 1, 0.01, 0, 0, 0, 1},     {kParams[3], 1, 0, 0, 0, 1, 4, 0, 1},
    {kParams[5], 1, 0, 0, 0, 0, 0, 0.7, 0.5},
};

struct Drawn {
  ChainToken token{};
  std::optional<BadRow> bad;
};
Drawn drawn(const Target& target, const Guarded<float>& x, const ChainParams& params, double uniform) {
  const Using used(target);
  const int32_t tokens[] = {0}, counts[] = {2};
  const int64_t starts[] = {0, 1};
  const float amounts[] = {1.5f};
  const Changes changes{{tokens, counts, starts}, {}, {}};
  Drawn out;
  out.bad = sample_chain(
      {x.data(), x.size(), kDefault, std::size(kDefault), params, uniform, changes, {tokens, amounts, starts}},
      out.token);
  return out;
}

void chain_case(Run& run, size_t n, const ChainParams& params) {
  const Edge edge = run.edge();
  run.at("%zu logits, guard at the %s", n, edge_name(edge));
  const Guarded<float> x(logits(run.random, n), edge);
  const double uniform = static_cast<double>(run.random.uniform());
  const Drawn own = drawn(run.target, x, params, uniform), expected = drawn(run.scalar, x, params, uniform);
  run.expect(own.bad == expected.bad && own.token.token == expected.token.token, "another token");
  run.expect(own.token.probability == expected.token.probability, "another probability");
  run.expect(x.intact(), "written outside of the row");
}

}  // namespace

void check_chain(Run& run) {
  for (const size_t n : kVocabs) {
    for (const ChainParams& params : kChains) {
      for (size_t i = 0; i < run.draws(2, 40); ++i) chain_case(run, n, params);
    }
  }
}

void check_sample(Run& run) {
  for (const size_t n : kVocabs) {
    for (size_t i = 0; i < run.draws(2, 40); ++i) sample_case(run, n);
  }
}

}  // namespace fewbit::selftest
