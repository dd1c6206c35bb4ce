// Passes over a row of logits. Every instruction set gives the same bits: sums have one order, and nothing is fused.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fewbit {

constexpr size_t kChunk = 1024;    // logits in one go
constexpr size_t kLanes = 64;      // of them side by side: lane l has the numbers l, l + 64, ...
constexpr size_t kBuckets = 1024;  // from likely to unlikely tokens, as wide in logits

// A token and its logit in one number: greater for a larger logit, or the lower id among equals.
using Key = uint64_t;

constexpr uint32_t kLastId = 0xffffffffu;

inline uint32_t ordered(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 is 0
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
inline float logit_of(Key key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(bits ^ (bits >> 31 ? 0x80000000u : 0xffffffffu));
}
inline int32_t id_of(Key key) { return static_cast<int32_t>(kLastId - static_cast<uint32_t>(key)); }

struct Extent {
  float top, lowest;  // of the finite logits; -infinity and the largest float if there is none
  bool valid;         // no NaN, no +infinity
};

// A weight is exp((logit - top) * by). Bucket b holds the logits with b <= (top - logit) * steps < b + 1.
struct WeightScale {
  float top, by, steps;
};

// What is in each bucket. There are two of each, so that equal buckets one after another do not wait for each other;
// the last one takes what is in no bucket.
struct Tally {
  double sums[2][kBuckets + kLanes];
  uint32_t counts[2][kBuckets + kLanes];
};

struct Passes {
  // groups: the largest logit of each lane of each chunk.
  Extent (*scan)(const float* x, size_t n, float* groups);
  double (*total)(const float* x, size_t n, const WeightScale& scale);  // weight
  // Keys of logits of at least `least`, in the order of ids. It gives up when there are more than `most`; out has room
  // for kLanes more.
  size_t (*collect)(const float* x, size_t n, float least, size_t most, Key* out);
  // Fills the buckets, and returns how many weights are at least `likely`.
  size_t (*tally)(const float* x, size_t n, const WeightScale& scale, float likely, Tally* out);
  // Keys of one bucket, in the order of ids; out has room for n + kLanes.
  size_t (*members)(const float* x, size_t n, const WeightScale& scale, size_t bucket, Key* out);
};

// A logit that at least k tokens reach, and in most rows few more: the k-th largest of the largest of some groups, as
// `scan` gives them. It changes them. -infinity where there are too few groups.
float reached_by(float* groups, size_t chunks, size_t k);
// exp of x <= 0, to about 1e-7 of it, and never less than 1e-38. A polynomial for what is left of a power of two.
inline __attribute__((always_inline)) float exp_of(float x) {
  x = x > -87.0f ? x : -87.0f;
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the last bits
  const float shifted = x * 1.44269504f + shift;
  const float power = shifted - shift;
  const float r = x - power * 0.693145751953125f - power * 1.42860682e-6f;  // ln 2 in two parts
  float y = 0.008290272206068039f;
  y = y * r + 0.04189816117286682f;
  y = y * r + 0.1666763871908188f;
  y = y * r + 0.4999914765357971f;
  y = y * r + 0.9999997019767761f;
  y = y * r + 1.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23);
  return std::bit_cast<float>(bits);
}
inline float weight_of(float logit, const WeightScale& scale) { return exp_of((logit - scale.top) * scale.by); }

}  // namespace fewbit
