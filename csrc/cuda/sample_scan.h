// The first pass over rows of logits: bias, penalties and masks, and what each chunk holds. Many blocks a sample.
#pragma once
#include "sample_params.h"

namespace fewbit {

__device__ __forceinline__ float limited(double logit) {
  constexpr double most = 3.4028234663852886e38;
  return static_cast<float>(logit > most ? most : logit < -most ? -most : logit);
}
__device__ __forceinline__ float with_bias(float logit, float bias) {
  if (logit == no_logit() || bias == no_logit()) return no_logit();
  return limited(static_cast<double>(logit) + static_cast<double>(bias));
}
// Rounded after each step, as the host does it.
__device__ __forceinline__ float with_penalties(const SampleParams& p, float logit, int count) {
  if (logit == no_logit()) return logit;
  const double v = logit, scaled = v > 0 ? v / p.repetition_penalty : __dmul_rn(v, p.repetition_penalty);
  const double often = __dmul_rn(p.frequency_penalty, static_cast<double>(count));
  return limited(__dadd_rn(scaled, -__dadd_rn(count > 0 ? p.presence_penalty : 0.0, often)));
}

// Changes the logits of tokens `first` to `first` + kScanChunk in shared memory.
__device__ __forceinline__ void change_chunk(const SampleParams& p, const uint32_t* packed, const int32_t* previous,
                                             int first, float* values) {
  __shared__ int is_listed;
  const auto* bias = reinterpret_cast<const int32_t*>(packed + p.bias_at);
  const auto* seen = reinterpret_cast<const int32_t*>(packed + p.seen_at);
  const int last = p.last < 0 ? -1 : previous[p.last];
  if (threadIdx.x == 0) is_listed = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < p.bias_count; i += kScanThreads) {
    const uint32_t at = static_cast<uint32_t>(bias[i] - first);
    if (at < kScanChunk) values[at] = with_bias(values[at], __int_as_float(bias[p.bias_count + i]));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.seen_count; i += kScanThreads) {
    const uint32_t at = static_cast<uint32_t>(seen[i] - first);
    if (at >= kScanChunk) continue;
    const bool is_last = seen[i] == last;
    if (is_last) is_listed = 1;
    values[at] = with_penalties(p, values[at], seen[p.seen_count + i] + is_last);
  }
  __syncthreads();
  if (threadIdx.x == 0 && last >= first && last < first + kScanChunk && !is_listed)
    values[last - first] = with_penalties(p, values[last - first], 1);
  __syncthreads();
}

// logits: rows of `vocab` floats, `stride` apart. changed: a row a slot, written where something changes.
// groups: the largest logit of every kGroup, after changes. The grid is (chunks of a row, slots).
__device__ __forceinline__ void sample_scan(const float* logits, int stride, int vocab, const uint32_t* packed,
                                            const int32_t* previous, float* changed, float* groups, ChunkTop* chunks) {
  start_next();
  wait_for_previous();
  const SampleParams& p = reinterpret_cast<const SampleParams*>(packed)[blockIdx.y];
  if (p.row < 0) return;
  __shared__ float values[kScanChunk];
  __shared__ uint64_t warp_keys[kScanThreads / 32];
  __shared__ float warp_tops[kScanThreads / 32];
  __shared__ double warp_totals[2][kScanThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = blockIdx.x;
  const int place = warp * 32 * kScanEach + lane, first = chunk * kScanChunk;
  const float* row = logits + static_cast<size_t>(p.row) * stride;

  float raw[kScanEach], own[kScanEach];
#pragma unroll
  for (int j = 0; j < kScanEach; ++j) {
    const int i = first + place + 32 * j;
    own[j] = raw[j] = i < vocab ? row[i] : no_logit();
  }
  if (p.changes) {
#pragma unroll
    for (int j = 0; j < kScanEach; ++j) values[place + 32 * j] = raw[j];
    change_chunk(p, packed, previous, first, values);
#pragma unroll
    for (int j = 0; j < kScanEach; ++j) {
      const int i = first + place + 32 * j;
      if (i >= vocab) continue;
      const bool allowed = !p.mask_at || packed[p.mask_at + i / 32] >> i % 32 & 1;
      own[j] = allowed ? values[place + 32 * j] : no_logit();
      changed[static_cast<size_t>(blockIdx.y) * vocab + i] = own[j];
    }
  }

  uint64_t key = 0;
  float raw_top = no_logit(), tops[2] = {no_logit(), no_logit()};
  bool is_bad = false;
#pragma unroll
  for (int j = 0; j < kScanEach; ++j) {
    is_bad |= !(raw[j] < -no_logit());
    raw_top = Larger()(raw_top, raw[j]);
    float& top = tops[j / (kScanEach / 2)];
    top = Larger()(top, own[j]);
    const uint64_t other = token_key(own[j], first + place + 32 * j);
    key = other > key ? other : key;
  }
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    const float top = reduce_warp(tops[g], Larger());
    const int group = chunk * kChunkGroups + warp * 2 + g;
    if (lane == 0) groups[static_cast<size_t>(blockIdx.y) * gridDim.x * kChunkGroups + group] = top;
  }
  key = largest_of_warp(key);
  raw_top = reduce_warp(raw_top, Larger());
  if (lane == 0) {
    warp_keys[warp] = key;
    warp_tops[warp] = raw_top;
  }
  is_bad = __syncthreads_or(is_bad);
#pragma unroll
  for (int w = 0; w < kScanThreads / 32; ++w) {
    key = warp_keys[w] > key ? warp_keys[w] : key;
    raw_top = Larger()(raw_top, warp_tops[w]);
  }

  const float top = logit_of(key);
  float raw_total = 0, total = 0;
#pragma unroll
  for (int j = 0; j < kScanEach; ++j) {
    if (raw_top > no_logit()) raw_total += expf(raw[j] - raw_top);
    if (p.needs_total && top > no_logit()) total += expf((own[j] - top) * p.by);
  }
  const double sums[2] = {sum_of_warp(raw_total), sum_of_warp(total)};
  if (lane == 0) warp_totals[0][warp] = sums[0], warp_totals[1][warp] = sums[1];
  __syncthreads();
  if (threadIdx.x) return;
  ChunkTop out = {0, 0, is_bad ? __int_as_float(0x7fffffff) : raw_top, top, 0, token_of(key)};
  out.raw = row[out.token];
  for (int w = 0; w < kScanThreads / 32; ++w) {
    out.raw_total += warp_totals[0][w];
    out.total += warp_totals[1][w];
  }
  chunks[static_cast<size_t>(blockIdx.y) * gridDim.x + chunk] = out;
}

}  // namespace fewbit
