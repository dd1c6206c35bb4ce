// What each sample asks for, as ops/cuda/sampling.py packs it, and what the kernels of sampling hand to each other.
// src/fewbit/ops/sampling.py tells what the stages do.
#pragma once
#include "device.h"

namespace fewbit {

// In a buffer of 32-bit words: one of these for each slot, then token ids, numbers and masks.
struct SampleParams {
  double uniform, top_p;
  double repetition_penalty, presence_penalty, frequency_penalty;
  float temperature, by;         // 0: the likeliest token; 1 / temperature
  float min_p, spare;            // `spare`: 1 - top_p, or 1 - uniform where all tokens are kept
  int32_t row, top_k;            // -1: the slot is not used; 0: all
  int32_t seen_at, seen_count;   // token ids, then how often each is in the output
  int32_t bias_at, bias_count;   // token ids, then floats
  int32_t mask_at;               // 0: none
  int32_t last;                  // which token of the step before counts as seen too; -1: none
  int32_t changes, needs_total;  // whether bias, mask or penalties do anything; whether all tokens are weighed
};
static_assert(sizeof(SampleParams) == 96);

enum SampleStatus : int32_t { kSampled = 0, kBadLogits = 1, kNoLogits = 2, kNothingAllowed = 3, kUnused = 4 };

constexpr int kScanThreads = 256;
constexpr int kScanEach = 8;                          // logits of a thread
constexpr int kScanChunk = kScanThreads * kScanEach;  // of a block
constexpr int kGroup = 128;                           // of which the largest is kept: half of a warp's
constexpr int kChunkGroups = kScanChunk / kGroup;
constexpr int kMaxGroups = 4096;  // of a row

// A chunk of a row. Totals are of exp(logit - largest of the chunk), the second one by temperature and after changes.
struct ChunkTop {
  double raw_total, total;
  float raw_top, top;  // the first is NaN where a logit is NaN or +infinity
  float raw;           // logit of the token before changes
  int32_t token;       // the first with the largest logit
};
static_assert(sizeof(ChunkTop) == 32);

__device__ __forceinline__ float no_logit() { return __int_as_float(static_cast<int>(0xff800000u)); }

// Greater for a larger logit; -0 is 0.
__device__ __forceinline__ uint32_t ordered(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}
constexpr uint32_t kLeastKey = 0x00800000u;  // of the lowest finite logit

// A token and its logit in one number: greater for a larger logit, or for the lower id among equals.
__device__ __forceinline__ uint64_t token_key(float logit, int token) {
  return static_cast<uint64_t>(ordered(logit)) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ __forceinline__ int token_of(uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float logit_of(uint64_t key) { return logit_of(static_cast<uint32_t>(key >> 32)); }

__device__ __forceinline__ uint64_t largest_of_warp(uint64_t v) {
#pragma unroll
  for (int s = 16; s; s /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, v, s);
    v = other > v ? other : v;
  }
  return v;
}
__device__ __forceinline__ double sum_of_warp(double v) {
#pragma unroll
  for (int s = 16; s; s /= 2) v += __shfl_xor_sync(~0u, v, s);
  return v;
}

}  // namespace fewbit
