// The second pass of sampling: one block a sample joins what the chunks hold, and takes the token.
#pragma once
#include "sample_scan.h"
#include "sample_tally.h"

namespace fewbit {

struct RowTop {
  bool is_bad;
  float raw_top, top, raw;
  int token;
  double raw_total, total;
};

// Every warp joins the chunks for itself, in the same order.
__device__ __forceinline__ RowTop join_chunks(const ChunkTop* chunks, int count, float by) {
  const int lane = threadIdx.x % 32;
  RowTop out = {false, no_logit(), no_logit(), no_logit(), 0, 0, 0};
  uint64_t key = 0;
  for (int i = lane; i < count; i += 32) {
    const ChunkTop c = chunks[i];
    out.is_bad |= !(c.raw_top < -no_logit());
    out.raw_top = Larger()(out.raw_top, c.raw_top);
    const uint64_t other = token_key(c.top, c.token);
    if (other > key) key = other, out.raw = c.raw;
  }
  out.is_bad = __any_sync(~0u, out.is_bad);
  out.raw_top = reduce_warp(out.raw_top, Larger());
  const uint64_t best = largest_of_warp(key);
  out.raw = __shfl_sync(~0u, out.raw, __ffs(__ballot_sync(~0u, key == best)) - 1);
  out.top = logit_of(best);
  out.token = token_of(best);
  for (int i = lane; i < count; i += 32) {
    const ChunkTop c = chunks[i];
    out.raw_total += c.raw_total * static_cast<double>(expf(c.raw_top - out.raw_top));
    out.total += c.total * static_cast<double>(expf((c.top - out.top) * by));
  }
  out.raw_total = sum_of_warp(out.raw_total);
  out.total = sum_of_warp(out.total);
  return out;
}

// The key below which no token is kept. Without top_k: those that are less likely weigh together less than what is
// left out, or they are less likely than min_p; the small number is far more than rounding can do.
__device__ __forceinline__ uint32_t least_key(const SampleParams& p, const OwnRow& row, double total) {
  if (p.top_k) return reached_by(row, p.top_k);
  constexpr float slack = 1e-3f;
  float depth = -no_logit();
  if (p.needs_total) depth = logf(static_cast<float>(row.vocab) / (p.spare * static_cast<float>(total))) + slack;
  if (p.min_p > 0) {
    const float other = slack - logf(p.min_p);
    depth = other < depth ? other : depth;
  }
  const uint32_t key = ordered(row.top - p.temperature * depth);
  return key > kLeastKey ? key : kLeastKey;
}

// One thread gets the token, which one is not said; the others get -1.
__device__ __forceinline__ int pick(const SampleParams& p, const OwnRow& row, PickMemory& m, double weight) {
  const uint64_t total = p.needs_total ? static_cast<uint64_t>(weight * static_cast<double>(kUnit)) : 0;
  uint32_t bound = least_key(p, row, weight);
  bool is_few = collect(row, m, bound);
  if (!is_few && total) {
    bound = tightened(row, m, bound, p.top_p < 1 ? enough_for(p.top_p, total) : more_than(p.uniform, total));
    is_few = collect(row, m, bound);
  }
  if (!is_few) return pick_of_many(p, row, m, bound, total);
  const int token = walk(p, row, m, total);
  return threadIdx.x ? -1 : token;
}

// tokens, logprobs, status: one for each slot; a slot that gives none has token 0. The grid is the number of slots.
__device__ __forceinline__ void sample_pick(const float* logits, int stride, int vocab, const uint32_t* packed,
                                            const float* changed, const float* groups, const ChunkTop* chunks,
                                            int num_chunks, int32_t* tokens, float* logprobs, int32_t* status) {
  start_next();
  wait_for_previous();
  __shared__ PickMemory m;
  const int slot = blockIdx.x;
  const SampleParams& p = reinterpret_cast<const SampleParams*>(packed)[slot];
  const auto fail = [&](int32_t reason) {
    if (threadIdx.x) return;
    tokens[slot] = 0;
    logprobs[slot] = 0;
    status[slot] = reason;
  };
  if (p.row < 0) return fail(kUnused);
  if (p.temperature == 0 && threadIdx.x >= 32) return;
  const RowTop of = join_chunks(chunks + static_cast<size_t>(slot) * num_chunks, num_chunks, p.by);
  if (of.is_bad) return fail(kBadLogits);
  if (of.raw_top == no_logit()) return fail(kNoLogits);
  if (of.top == no_logit()) return fail(kNothingAllowed);

  const float* raw = logits + static_cast<size_t>(p.row) * stride;
  int token = threadIdx.x ? -1 : of.token;
  if (p.temperature > 0) {
    const float* own = p.changes ? changed + static_cast<size_t>(slot) * vocab : raw;
    const size_t groups_at = static_cast<size_t>(slot) * num_chunks * kChunkGroups;
    const OwnRow row = {own, vocab, of.top, p.by, groups + groups_at, (vocab + kGroup - 1) / kGroup};
    token = pick(p, row, m, of.total);
  }
  if (token < 0) return;
  const float logit = p.temperature > 0 ? raw[token] : of.raw;
  tokens[slot] = token;
  logprobs[slot] = static_cast<float>(static_cast<double>(logit) - of.raw_top - log(of.raw_total));
  status[slot] = kSampled;
}

}  // namespace fewbit
