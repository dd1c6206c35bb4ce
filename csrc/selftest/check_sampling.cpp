// Sampling: every instruction set gives the same bits.
#include <cmath>
#include <memory>

#include "passes.h"
#include "sample.h"
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

// All that the passes of one instruction set tell of a row.
struct Told {
  Extent extent;
  Floats groups;
  double total;
  std::vector<Key> collected, members;
  size_t likely;
  std::unique_ptr<Tally> tally = std::make_unique<Tally>();
};

Told told(const Target& target, const Guarded<float>& x, size_t bucket) {
  const Using used(target);
  const Passes& passes = current_target().rows.passes;
  const size_t n = x.size();
  Told out;
  out.groups.resize((n + kChunk - 1) / kChunk * kLanes);
  out.extent = passes.scan(x.data(), n, out.groups.data());
  const WeightScale scale{out.extent.top, 0.8f, static_cast<float>(kBuckets) / 30};
  out.total = passes.total(x.data(), n, scale);
  out.collected.resize(n + kLanes);
  out.collected.resize(passes.collect(x.data(), n, out.extent.top - 2, n, out.collected.data()));
  out.likely = passes.tally(x.data(), n, scale, 0.05f, out.tally.get());
  out.members.resize(n + kLanes);
  out.members.resize(passes.members(x.data(), n, scale, bucket, out.members.data()));
  return out;
}

bool same_tally(const Tally& a, const Tally& b) {
  return std::memcmp(a.sums[0], b.sums[0], kBuckets * sizeof(double)) == 0 &&
         std::memcmp(a.counts[0], b.counts[0], kBuckets * sizeof(uint32_t)) == 0;
}

void passes_case(Run& run, size_t n) {
  const Edge edge = run.edge();
  const size_t bucket = run.random.below(40);
  run.at("%zu logits, bucket %zu, guard at the %s", n, bucket, edge_name(edge));
  const Guarded<float> x(logits(run.random, n), edge);
  const Told own = told(run.target, x, bucket), expected = told(run.scalar, x, bucket);
  run.expect(own.extent.top == expected.extent.top && own.extent.lowest == expected.extent.lowest &&
                 own.extent.valid == expected.extent.valid && same_floats(own.groups, expected.groups),
             "another extent");
  run.expect(own.total == expected.total, "another total");
  run.expect(own.collected == expected.collected, "other tokens collected");
  run.expect(own.likely == expected.likely && same_tally(*own.tally, *expected.tally), "another tally");
  run.expect(own.members == expected.members, "other members of a bucket");
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

}  // namespace

void check_passes(Run& run) {
  for (const size_t n : kVocabs) {
    for (size_t i = 0; i < run.draws(2, 40); ++i) passes_case(run, n);
  }
}

void check_sample(Run& run) {
  for (const size_t n : kVocabs) {
    for (size_t i = 0; i < run.draws(2, 40); ++i) sample_case(run, n);
  }
}

}  // namespace fewbit::selftest
