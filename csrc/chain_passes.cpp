// Plain loops over lanes, which compilers vectorize: see chain_passes.h.
#include "chain_passes.h"

#include <limits>

namespace fewbit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max();

// The next chunk; if the row ends before it does, a copy that goes on with -infinity.
const float* chunk_of(const float* x, size_t n, size_t at, float* copy) {
  if (n - at >= kChunk) return x + at;
  for (size_t i = 0; i < kChunk; ++i) copy[i] = i < n - at ? x[at + i] : -kInfinity;
  return copy;
}

float sum_of_lanes(float* lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace

WeightSums weigh(const float* x, size_t n, const WeightScale& scale) {
  alignas(64) float copy[kChunk], sums[kLanes], weighted[kLanes];
  alignas(64) int32_t counts[kLanes] = {};
  const float top = scale.top, by = scale.by;
  WeightSums out{0, 0, 0};
  for (size_t at = 0; at < n; at += kChunk) {
    const float* from = chunk_of(x, n, at, copy);
    for (size_t l = 0; l < kLanes; ++l) sums[l] = weighted[l] = 0;
    for (size_t i = 0; i < kChunk; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float below = (from[i + l] - top) * by, power = below > -87.0f ? below : -87.0f;
        const float weight = exp_of(power);
        sums[l] += weight;
        weighted[l] += weight * power;
        counts[l] += from[i + l] >= -kMost ? 1 : 0;
      }
    }
    out.total += static_cast<double>(sum_of_lanes(sums));
    out.weighted += static_cast<double>(sum_of_lanes(weighted));
  }
  for (size_t l = 0; l < kLanes; ++l) out.count += static_cast<size_t>(counts[l]);
  return out;
}

Deviation deviation(const float* x, size_t n, float top) {
  alignas(64) float copy[kChunk], sums[kLanes], squares[kLanes];
  alignas(64) int32_t counts[kLanes] = {};
  Deviation out{0, 0, 0};
  for (size_t at = 0; at < n; at += kChunk) {
    const float* from = chunk_of(x, n, at, copy);
    for (size_t l = 0; l < kLanes; ++l) sums[l] = squares[l] = 0;
    for (size_t i = 0; i < kChunk; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float v = from[i + l], below = v >= -kMost ? v - top : 0.0f;
        sums[l] += below;
        squares[l] += below * below;
        counts[l] += v >= -kMost ? 1 : 0;
      }
    }
    out.sum += static_cast<double>(sum_of_lanes(sums));
    out.squares += static_cast<double>(sum_of_lanes(squares));
  }
  for (size_t l = 0; l < kLanes; ++l) out.count += static_cast<size_t>(counts[l]);
  return out;
}

void drop_below(float* x, size_t n, float least) {
  for (size_t i = 0; i < n; ++i) x[i] = x[i] < least ? -kInfinity : x[i];
}

}  // namespace fewbit
