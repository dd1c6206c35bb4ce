// Which experts a token is given to and how much each of them counts, as in ops/experts.py; the pairs of a token and an
// expert, listed by expert; and the sum of what the experts of a token made.
#pragma once
#include "activations.h"
#include "row_maths.h"

namespace fewbit {

enum class Score { softmax, sigmoid, softmax_top };

struct Routing {
  int experts, top_k, groups, top_groups, group_top;
  bool normalize;
  float scale;
  const float *bias, *expert_scale;  // may be null
  Score score = {};
};

constexpr int kNone = 0x7fffffff;
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// The largest of a warp; of equal ones that with the lowest number. `with` goes along.
__device__ __forceinline__ void find_best(float& rank, int& index, float& with) {
#pragma unroll
  for (int s = 16; s; s /= 2) {
    const float other = __shfl_xor_sync(~0u, rank, s), other_with = __shfl_xor_sync(~0u, with, s);
    const int other_index = __shfl_xor_sync(~0u, index, s);
    if (other > rank || (other == rank && other_index < index)) rank = other, index = other_index, with = other_with;
  }
}

// Experts of all but the best groups get the rank -inf. Expert j * 32 + lane is in ranked[j].
template <int P>
__device__ __forceinline__ void keep_groups(const Routing& r, int lane, float (&ranked)[P]) {
  const int size = r.experts / r.groups;
  float own = -infinity();  // lane g: how good group g is
  for (int g = 0; g < r.groups; ++g) {
    float first = -infinity(), second = -infinity();
#pragma unroll
    for (int j = 0; j < P; ++j)
      if ((j * 32 + lane) / size == g && j * 32 + lane < r.experts) {
        const float v = ranked[j];
        second = v > first ? first : v > second ? v : second;
        first = v > first ? v : first;
      }
#pragma unroll
    for (int s = 16; s; s /= 2) {
      const float a = __shfl_xor_sync(~0u, first, s), b = __shfl_xor_sync(~0u, second, s);
      const float low = a < first ? a : first;
      first = a > first ? a : first;
      second = second > b ? second : b;
      second = second > low ? second : low;
    }
    if (lane == g) own = r.group_top == 2 ? first + second : first;
  }
  uint32_t kept = 0;
  for (int i = 0; i < r.top_groups; ++i) {
    float rank = kept >> lane & 1 || lane >= r.groups ? -infinity() : own, unused = 0;
    int index = kept >> lane & 1 || lane >= r.groups ? kNone : lane;
    find_best(rank, index, unused);
    kept |= 1u << (index & 31);
  }
#pragma unroll
  for (int j = 0; j < P; ++j)
    if (!(kept >> ((j * 32 + lane) / size & 31) & 1)) ranked[j] = -infinity();
}

// A warp; P: experts a lane. Without a bias scores are ranked, in the order of their probabilities.
template <int P>
__device__ __forceinline__ void route_token(const float* scores, const Routing& r, int lane, int* chosen,
                                            float* weights) {
  float logits[P], ranked[P], most = -infinity(), total = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    logits[j] = j * 32 + lane < r.experts ? scores[j * 32 + lane] : -infinity();
    most = Larger()(most, logits[j]);
  }
  most = reduce_warp(most, Larger());
#pragma unroll
  for (int j = 0; j < P; ++j) total += j * 32 + lane < r.experts ? expf(logits[j] - most) : 0.0f;
  total = reduce_warp(total, Added());
  auto probability = [&](float v) {
    return r.score == Score::softmax ? expf(v - most) / total : r.score == Score::sigmoid ? sigmoid(v) : v;
  };
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const int e = j * 32 + lane;
    float rank = logits[j];
    if (e < r.experts && (r.bias || r.group_top == 2)) rank = probability(rank) + (r.bias ? r.bias[e] : 0.0f);
    ranked[j] = rank == rank ? rank : -infinity();
  }
  if (r.groups > 1) keep_groups(r, lane, ranked);
  uint32_t used = 0;
  int own = 0;
  float logit = 0;
  for (int i = 0; i < r.top_k; ++i) {
    float rank = -infinity(), with = 0;
    int index = kNone;
#pragma unroll
    for (int j = 0; j < P; ++j) {
      const int e = j * 32 + lane;
      if (e < r.experts && !(used >> j & 1) && (ranked[j] > rank || (ranked[j] == rank && e < index)))
        rank = ranked[j], index = e, with = logits[j];
    }
    find_best(rank, index, with);
    if (index % 32 == lane) used |= 1u << index / 32;
    if (i == lane) own = index, logit = with;
  }
  const bool real = lane < r.top_k;
  float w = real ? probability(logit) : 0.0f;
  if (r.score == Score::softmax_top) {
    const float top = reduce_warp(real ? logit : -infinity(), Larger());
    w = real ? expf(logit - top) : 0.0f;
    w /= reduce_warp(w, Added());
  } else if (r.normalize) {
    w /= reduce_warp(w, Added()) + 1e-20f;
  }
  if (!real) return;
  chosen[lane] = own;
  weights[lane] = w * r.scale * (r.expert_scale ? r.expert_scale[own] : 1.0f);
}

// A block a token: the first warp routes it, the others make 8-bit activations of it, `parts` of them, [token][part]
// [granule]; with no parts there is one warp.
template <Score score, int P, int parts>
__device__ __forceinline__ void route(ConstRows scores, Routing r, int* chosen, float* weights, ConstRows x, int8_t* q,
                                      int2* xm, int k, int granules) {
  r.score = score;
  start_next();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
  if (warp == 0) {
    route_token<P>(scores[token], r, lane, chosen + token * r.top_k, weights + token * r.top_k);
    return;
  }
  for (int g = warp - 1; g < granules; g += blockDim.x / 32 - 1) {
    const int i = g * 32 + lane;
    float v = i < k ? x[token][i] : 0.0f;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const size_t at = (static_cast<size_t>(token) * parts + part) * granules + g;
      v = quantize_granule(v, lane, q + 32 * at, xm + at);
    }
  }
}

// A block an expert: its pairs (token * top_k + place) in their order, in a row of `tokens`, and how many they are.
__device__ __forceinline__ void list_pairs(const int* chosen, int* lists, int* counts, int tokens, int top_k) {
  __shared__ int of_warp[32];
  start_next();
  wait_for_previous();
  const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int total = 0;
  for (int base = 0; base < tokens * top_k; base += blockDim.x) {
    const int i = base + threadIdx.x;
    const bool hit = i < tokens * top_k && chosen[i] == expert;
    const uint32_t hits = __ballot_sync(~0u, hit);
    if (lane == 0) of_warp[warp] = __popc(hits);
    __syncthreads();
    int at = total + __popc(hits & ((1u << lane) - 1));
    for (int w = 0; w < warps; ++w) {
      at += w < warp ? of_warp[w] : 0;
      total += of_warp[w];
    }
    if (hit && at < tokens) lists[static_cast<size_t>(expert) * tokens + at] = i;
    __syncthreads();
  }
  if (threadIdx.x == 0) counts[expert] = total < tokens ? total : tokens;
}

// Work of a grouped product: `size` pairs of one expert, the item-th such part of all; expert -1: there are fewer.
struct Part {
  int expert, first, count;
};
__device__ __forceinline__ Part find_part(const int* counts, int experts, int size, int item) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < experts; base += 32) {
    const int count = base + lane < experts ? counts[base + lane] : 0, own = (count + size - 1) / size;
    int sum = own;
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const int other = __shfl_up_sync(~0u, sum, s);
      if (lane >= s) sum += other;
    }
    const uint32_t beyond = __ballot_sync(~0u, before + sum > item);
    if (beyond) {
      const int at = __ffs(static_cast<int>(beyond)) - 1;
      const int first = (item - before - __shfl_sync(~0u, sum - own, at)) * size;
      const int rest = __shfl_sync(~0u, count, at) - first;
      return {base + at, first, rest < size ? rest : size};
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return {-1, 0, 0};
}

// out[token] = the weighted sum of the token's pairs, in their order.
__device__ __forceinline__ void combine_pairs(const float* y, const float* weights, Rows out, int width, int top_k) {
  start_next();
  wait_for_previous();
  const int token = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width) return;
  float sum = 0;
  for (int j = 0; j < top_k; ++j) {
    const size_t pair = static_cast<size_t>(token) * top_k + j;
    sum += weights[pair] * y[pair * width + i];
  }
  out[token][i] = sum;
}

}  // namespace fewbit
