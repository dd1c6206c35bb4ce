// Sampling where many tokens may be kept: histograms of counts and weights over the keys, three at most to a key.
#pragma once
#include "sample_select.h"

namespace fewbit {

// Some of the likeliest tokens: all with greater keys, and the first `rank` with this one.
struct Prefix {
  uint32_t key, rank;
  uint64_t sum;
};

// 64 bits in two words: shared memory adds 32 bits at once.
__device__ __forceinline__ void add_wide(uint32_t* low, uint32_t* high, uint64_t v) {
  const auto part = static_cast<uint32_t>(v);
  const uint32_t carry = atomicAdd(low, part) + part < part, rest = static_cast<uint32_t>(v >> 32) + carry;
  if (rest) atomicAdd(high, rest);
}

// Keys from `least` to `most` in buckets of 2^shift, the greatest first.
__device__ __forceinline__ void tally(const OwnRow& row, PickMemory& m, uint32_t least, uint32_t most, int shift) {
  __syncthreads();
  for (int b = threadIdx.x; b < kBuckets; b += kPickThreads) m.counts[b] = m.low[b] = m.high[b] = 0;
  __syncthreads();
  for_active(row, m, [&](float x, int) {
    const uint32_t key = ordered(x);
    if (key < least || key > most) return;
    const uint32_t b = (most - key) >> shift;
    atomicAdd(&m.counts[b], 1u);
    add_wide(&m.low[b], &m.high[b], row.mass(x));
  });
  __syncthreads();
}

// Finds the bucket in which a count or a weight of `need` is reached, by what was before and what was tallied.
template <bool by_count>
__device__ __forceinline__ void find_bucket(PickMemory& m, uint64_t& need, uint32_t& count, uint64_t& sum) {
  const int b = 2 * threadIdx.x;
  uint32_t counts[2];
  uint64_t sums[2], all_counts, all_sums;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    counts[e] = m.counts[b + e];
    sums[e] = static_cast<uint64_t>(m.high[b + e]) << 32 | m.low[b + e];
  }
  auto count_before = count + static_cast<uint32_t>(sum_before(counts[0] + counts[1], m, all_counts));
  uint64_t before = sum + sum_before(sums[0] + sums[1], m, all_sums);
  const uint64_t all = by_count ? count + all_counts : sum + all_sums;
  if (need > all) need = all;  // the total of another pass was rounded up
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const uint64_t low = by_count ? count_before : before, more = by_count ? counts[e] : sums[e];
    if (low < need && need <= low + more) {
      m.bucket = b + e;
      m.count_before = count_before;
      m.sum_before = before;
    }
    count_before += counts[e];
    before += sums[e];
  }
  __syncthreads();
  count = m.count_before;
  sum = m.sum_before;
}

__device__ __forceinline__ int first_shift(uint32_t least, uint32_t most) {
  const int bits = 32 - __clz(static_cast<int>(most - least));
  return bits > kBucketBits ? bits - kBucketBits : 0;
}

// The shortest prefix that reaches a count or a weight.
template <bool by_count>
__device__ __forceinline__ Prefix reach(const OwnRow& row, PickMemory& m, uint32_t least, uint64_t need) {
  uint32_t most = ordered(row.top), count = 0;
  uint64_t sum = 0;
  for (int shift = first_shift(least, most);; shift = shift > kBucketBits ? shift - kBucketBits : 0) {
    tally(row, m, least, most, shift);
    find_bucket<by_count>(m, need, count, sum);
    most -= m.bucket << shift;
    if (shift == 0) break;
    const uint32_t end = most - ((1u << shift) - 1);
    if (end > least) least = end;
  }
  const uint64_t mass = row.mass(logit_of(most)), ties = m.counts[m.bucket];
  uint64_t rank = by_count ? need - count : mass ? (need - sum + mass - 1) / mass : 1;
  if (rank > ties) rank = ties;
  return {most, static_cast<uint32_t>(rank), sum + rank * mass};
}

// A higher bound for the tokens that reach a weight: the lower edge of the bucket where it is reached.
__device__ __forceinline__ uint32_t tightened(const OwnRow& row, PickMemory& m, uint32_t least, uint64_t need) {
  const uint32_t most = ordered(row.top);
  const int shift = first_shift(least, most);
  uint32_t count = 0;
  uint64_t sum = 0;
  tally(row, m, least, most, shift);
  find_bucket<false>(m, need, count, sum);
  const uint32_t end = most - (m.bucket << shift) - ((1u << shift) - 1);
  return end > least && end <= most ? end : least;
}

__device__ __forceinline__ uint64_t likely_sum(const SampleParams& p, const OwnRow& row, PickMemory& m) {
  uint64_t sum = 0, all;
  for_active(row, m, [&](float x, int) {
    if (row.weight(x) >= p.min_p) sum += row.mass(x);
  });
  sum_before(sum, m, all);
  return all;
}

// The rank-th token with a key, by id: each warp has a part of the row. One thread of the block gets it, others get -1.
__device__ __forceinline__ int nth(const OwnRow& row, PickMemory& m, uint32_t key, uint32_t rank) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = (row.vocab + kPickThreads - 1) / kPickThreads * 32;
  const int begin = warp * part, end = begin + part < row.vocab ? begin + part : row.vocab;
  const auto has_key = [&](int i) { return i < end && ordered(row.x[i]) == key; };
  uint32_t count = 0;
#pragma unroll 8
  for (int i = begin; i < end; i += 32) count += __popc(__ballot_sync(~0u, has_key(i + lane)));
  uint64_t all;
  const auto before = static_cast<uint32_t>(sum_before(lane == 0 ? count : 0, m, all));
  uint32_t left = rank - __shfl_sync(~0u, before, 0);  // it wraps around where an earlier warp has the token
  if (left == 0 || left > count) return -1;
  for (int i = begin; i < end; i += 32) {
    const bool is_one = has_key(i + lane);
    const uint32_t lanes = __ballot_sync(~0u, is_one), here = __popc(lanes);
    if (left <= here)
      return is_one && static_cast<uint32_t>(__popc(lanes & ((1u << lane) - 1))) + 1 == left ? i + lane : -1;
    left -= here;
  }
  return -1;
}

// The token, by as many passes as it takes. The thread that gets it is any one; others get -1.
__device__ __forceinline__ int pick_of_many(const SampleParams& p, const OwnRow& row, PickMemory& m, uint32_t bound,
                                            uint64_t total) {
  uint64_t sum = total ? total : ~0ull;
  if (p.top_k) sum = reach<true>(row, m, bound, p.top_k).sum;
  if (p.top_p < 1) sum = reach<false>(row, m, bound, enough_for(p.top_p, sum)).sum;
  if (p.min_p > 0) {
    const uint64_t likely = likely_sum(p, row, m);
    if (likely < sum) sum = likely;
  }
  const Prefix found = reach<false>(row, m, bound, more_than(p.uniform, sum));
  return nth(row, m, found.key, found.rank);
}

}  // namespace fewbit
