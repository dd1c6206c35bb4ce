// Which token of one row a block takes, without sorting the row: whole groups are left out by their largest logits, the
// few tokens that remain are sorted; where many remain, the key at which a count or a weight is reached is found by
// histograms. Weights are integers, so that sums are exact and their order changes nothing.
#pragma once
#include "sample_params.h"

namespace fewbit {

constexpr int kPickThreads = 1024;
constexpr int kWarps = kPickThreads / 32;
constexpr int kFew = 2 * kPickThreads;  // tokens that are sorted at once
constexpr int kBuckets = 2 * kPickThreads;
constexpr int kBucketBits = 11;
static_assert(kBuckets == 1 << kBucketBits);
constexpr float kUnit = 17592186044416.0f;  // 2^44, the weight of the likeliest; 2^19 of them fit in 64 bits

struct PickMemory {
  union {
    struct {
      uint64_t keys[kFew];  // likeliest first
      uint64_t sums[kFew];
    };
    struct {
      uint32_t counts[kBuckets], low[kBuckets], high[kBuckets];
    };
  };
  uint16_t active[kMaxGroups];  // groups with a token at or above the bound, in any order
  uint32_t num_active, num_found;
  uint64_t parts[kWarps];
  uint32_t bucket, count_before;
  uint64_t sum_before;
};

// The logits of a sample, after changes.
struct OwnRow {
  const float* x;
  int vocab;
  float top, by;
  const float* groups;
  int num_groups;

  __device__ float weight(float logit) const { return expf((logit - top) * by); }
  __device__ uint64_t mass(float logit) const { return static_cast<uint64_t>(weight(logit) * kUnit); }
};

// The sum over the threads before this one; `total`: over all.
__device__ __forceinline__ uint64_t sum_before(uint64_t own, PickMemory& m, uint64_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto scan = [lane](uint64_t v) {
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, v, s);
      if (lane >= s) v += other;
    }
    return v;
  };
  const uint64_t inside = scan(own);
  __syncthreads();  // the parts of a sum before have been read
  if (lane == 31) m.parts[warp] = inside;
  __syncthreads();
  const uint64_t parts = scan(m.parts[lane]);
  total = __shfl_sync(~0u, parts, 31);
  const uint64_t before = __shfl_sync(~0u, parts, warp ? warp - 1 : 0);
  return inside - own + (warp ? before : 0);
}

// Calls f(logit, token) for the tokens of active groups, two groups a warp at once; f may talk to the other lanes.
// With `few` a warp gives up as soon as more than kFew tokens were found.
template <bool few = false, class F>
__device__ __forceinline__ void for_active(const OwnRow& row, const PickMemory& m, F f) {
  const int lane = threadIdx.x % 32, count = static_cast<int>(m.num_active);
  for (int i = threadIdx.x / 32 * 2; i < count; i += 2 * kWarps) {
    if (few && __any_sync(~0u, *static_cast<const volatile uint32_t*>(&m.num_found) > kFew)) return;
    float x[8];
    int first[2];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      first[g] = i + g < count ? m.active[i + g] * kGroup + lane : row.vocab;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = first[g] + 32 * j;
        x[4 * g + j] = token < row.vocab ? row.x[token] : no_logit();
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) f(x[j], first[j / 4] + j % 4 * 32);
  }
}

// A key that at least k tokens reach, and in most rows few more: about the k-th largest of the groups' largest.
__device__ __forceinline__ uint32_t reached_by(const OwnRow& row, int k) {
  if (k > row.num_groups) return kLeastKey;
  constexpr int slots = kMaxGroups / kPickThreads;
  uint32_t keys[slots], bound = 0;
#pragma unroll
  for (int s = 0; s < slots; ++s) {
    const int g = s * kPickThreads + threadIdx.x;
    keys[s] = g < row.num_groups ? ordered(row.groups[g]) : 0;
  }
  for (int bit = 31; bit >= 10; --bit) {
    const uint32_t trial = bound | 1u << bit;
    int count = 0;
#pragma unroll
    for (int s = 0; s < slots; ++s)
      if (s * kPickThreads < row.num_groups) count += __syncthreads_count(keys[s] >= trial);
    if (count >= k) bound = trial;
  }
  return bound > kLeastKey ? bound : kLeastKey;
}

__device__ __forceinline__ void list_groups(const OwnRow& row, PickMemory& m, uint32_t bound) {
  __syncthreads();
  if (threadIdx.x == 0) m.num_active = m.num_found = 0;
  __syncthreads();
  for (int g = threadIdx.x; g < row.num_groups; g += kPickThreads)
    if (ordered(row.groups[g]) >= bound) m.active[atomicAdd(&m.num_active, 1u)] = static_cast<uint16_t>(g);
  __syncthreads();
}

// The keys of all tokens at or above the bound, in any order; false if they are not few.
__device__ __forceinline__ bool collect(const OwnRow& row, PickMemory& m, uint32_t bound) {
  list_groups(row, m, bound);
  if (m.num_active > kFew) return false;
  const int lane = threadIdx.x % 32;
  for_active<true>(row, m, [&](float x, int token) {
    const bool is_in = ordered(x) >= bound;
    const uint32_t lanes = __ballot_sync(~0u, is_in);
    if (lanes == 0) return;
    uint32_t at = 0;
    if (lane == 0) at = atomicAdd(&m.num_found, static_cast<uint32_t>(__popc(lanes)));
    at = __shfl_sync(~0u, at, 0) + __popc(lanes & ((1u << lane) - 1));
    if (is_in && at < kFew) m.keys[at] = token_key(x, token);
  });
  __syncthreads();
  return m.num_found <= kFew;
}

// Bitonic, largest first; a thread a pair. Pairs that are near each other stay in a warp.
__device__ __forceinline__ void sort_found(PickMemory& m) {
  const int count = static_cast<int>(m.num_found), t = threadIdx.x;
  int padded = 2;
  while (padded < count) padded *= 2;
  for (int i = count + t; i < padded; i += kPickThreads) m.keys[i] = 0;
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int apart = size / 2; apart; apart /= 2) {
      if (t < padded / 2) {
        const int i = 2 * t - (t & (apart - 1)), j = i + apart;
        const uint64_t a = m.keys[i], b = m.keys[j];
        if ((a < b) == !(i & size)) m.keys[i] = b, m.keys[j] = a;
      }
      if (apart > 32 || (apart == 1 && size >= 64))
        __syncthreads();
      else
        __syncwarp();
    }
  }
  __syncthreads();
}

// What a sum must be at least, for top_p and for the uniform number: sums are integers.
__device__ __forceinline__ uint64_t enough_for(double top_p, uint64_t sum) {
  const auto need = static_cast<uint64_t>(ceil(top_p * static_cast<double>(sum)));
  return need ? need : 1;
}
__device__ __forceinline__ uint64_t more_than(double uniform, uint64_t sum) {
  const auto need = static_cast<uint64_t>(uniform * static_cast<double>(sum)) + 1;
  return need < sum ? need : sum;
}

// The token by the keys that were collected; thread 0 gets it. `total`: weight of all tokens, 0 if that is not needed.
__device__ __forceinline__ int walk(const SampleParams& p, const OwnRow& row, PickMemory& m, uint64_t total) {
  sort_found(m);
  const int found = static_cast<int>(m.num_found), i = 2 * threadIdx.x;
  uint64_t mass[2] = {0, 0}, all;
  int likely = 0;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float w = i + e < found ? row.weight(logit_of(m.keys[i + e])) : 0;
    mass[e] = static_cast<uint64_t>(w * kUnit);
    likely += __syncthreads_count(i + e < found && w >= p.min_p);
  }
  const uint64_t before = sum_before(mass[0] + mass[1], m, all);
  m.sums[i] = before + mass[0];
  m.sums[i + 1] = before + mass[0] + mass[1];
  __syncthreads();
  if (threadIdx.x) return 0;

  int kept = p.top_k && p.top_k < found ? p.top_k : found;
  const auto shorten = [&](uint64_t need) {  // the fewest of the kept ones that reach it, or all of them
    int low = 0, high = kept - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (m.sums[middle] >= need)
        high = middle;
      else
        low = middle + 1;
    }
    return low + 1;
  };
  uint64_t sum = total ? total : m.sums[kept - 1];
  if (p.top_p < 1) {
    kept = shorten(enough_for(p.top_p, sum));
    sum = m.sums[kept - 1];
  }
  if (likely < kept) {
    kept = likely > 0 ? likely : 1;
    sum = m.sums[kept - 1];
  }
  return token_of(m.keys[shorten(more_than(p.uniform, sum)) - 1]);
}

}  // namespace fewbit
