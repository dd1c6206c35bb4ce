// Rows of f32 from rows of f32: maths of each value, norms, heads taken apart and joined, rotary positions. All rows
// have a stride of their own, in floats.
#pragma once
#include "maths.h"

namespace fewbit {

struct ConstRows {
  const float* first;
  int stride;
  __device__ __forceinline__ const float* operator[](int row) const {
    return first + static_cast<size_t>(row) * stride;
  }
};
struct Rows {
  float* first;
  int stride;
  __device__ __forceinline__ float* operator[](int row) const { return first + static_cast<size_t>(row) * stride; }
};

// Of one value, or of two. `by` is the cap of a softcap, the factor of a scale, and a limit.
template <Maths M, bool is_gate>
__device__ __forceinline__ float compute(float a, float b, float by) {
  if constexpr (M == Maths::add)
    return a + b;
  else if constexpr (M == Maths::scale)
    return by * a;
  else if constexpr (M == Maths::softcap)
    return by * tanhf(a / by);
  else if constexpr (M == Maths::at_least)
    return a < by ? by : a;  // NaN stays
  else if constexpr (M == Maths::at_most)
    return a > by ? by : a;
  else if constexpr (is_gate)
    return gated<M>(a, b);
  else
    return activated<M>(a);
}

// A block has some columns of row blockIdx.x. `b` is not read where the maths has one input. `by4`: pointers and
// strides allow four values at once.
template <Maths M, bool is_gate>
__device__ __forceinline__ void elementwise(ConstRows a, ConstRows b, Rows out, int width, float by, bool by4) {
  constexpr bool two = is_gate || M == Maths::add;
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, first = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (first >= width) return;
  const float *x = a[row] + first, *y = two ? b[row] + first : nullptr;
  float* to = out[row] + first;
  if (by4 && first + 4 <= width) {
    const float4 u = *reinterpret_cast<const float4*>(x);
    float4 v = {};
    if constexpr (two) v = *reinterpret_cast<const float4*>(y);
    *reinterpret_cast<float4*>(to) = {compute<M, is_gate>(u.x, v.x, by), compute<M, is_gate>(u.y, v.y, by),
                                      compute<M, is_gate>(u.z, v.z, by), compute<M, is_gate>(u.w, v.w, by)};
    return;
  }
  for (int i = 0; i < 4 && first + i < width; ++i) to[i] = compute<M, is_gate>(x[i], two ? y[i] : 0.0f, by);
}

// Heads of a, `a_width` values of each, and after each of them that of b, in units of V. Without b: some columns.
template <class V>
__device__ __forceinline__ void join_heads(ConstRows a, int a_dim, int a_width, ConstRows b, int b_dim, int b_width,
                                           Rows out, int heads) {
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, width = a_width + b_width, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= heads * width) return;
  const int head = i / width, c = i % width;
  const V* x = reinterpret_cast<const V*>(a[row]) + head * a_dim + c;
  if (c >= a_width) x = reinterpret_cast<const V*>(b[row]) + head * b_dim + (c - a_width);
  reinterpret_cast<V*>(out[row])[i] = *x;
}

// Rows by their numbers; a number below 0 gives zeros.
template <class V>
__device__ __forceinline__ void gather_rows(ConstRows x, const int* indices, Rows out, int width) {
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const int from = indices[row];
  reinterpret_cast<V*>(out[row])[i] = from < 0 ? V{} : reinterpret_cast<const V*>(x[from])[i];
}

// The sum of parts that lie behind each other, `rows` rows of `width` values each, added in their order.
__device__ __forceinline__ void sum_parts(const float* first, int parts, int rows, int width, Rows out) {
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t apart = static_cast<size_t>(rows) * width;
  const float* x = first + static_cast<size_t>(row) * width + i;
  float sum = x[0];
  for (int part = 1; part < parts; ++part) sum += x[part * apart];
  out[row][i] = sum;
}

// Reduced over the threads of a row: a block, or a warp of it.
template <bool warp_rows>
__device__ __forceinline__ float sum_row(float v) {
  if constexpr (warp_rows)
    return reduce_warp(v, Added());
  else
    return reduce_block(v, Added());
}

// Each of `heads` heads of a row by itself: x / rms(x) * weight, or (x - mean) / deviation * weight + bias
// (`centered`). A head has a block, or a warp (`warp_rows`).
template <bool centered, bool warp_rows>
__device__ __forceinline__ void norm_rows(ConstRows x, const float* weight, const float* bias, float eps, Rows out,
                                          int rows, int heads, int dim) {
  start_next();
  wait_for_previous();
  const int threads = warp_rows ? 32 : blockDim.x, lane = threadIdx.x % threads;
  const int id = warp_rows ? (blockIdx.x * blockDim.x + threadIdx.x) / 32 : blockIdx.x;
  if (id >= rows * heads) return;
  const int row = id / heads, first = id % heads * dim;
  const float* own = x[row] + first;
  float* to = out[row] + first;
  float total = 0;
  for (int i = lane; i < dim; i += threads) {
    const float v = own[i];
    total += centered ? v : v * v;
  }
  total = sum_row<warp_rows>(total) / static_cast<float>(dim);
  const float mean = centered ? total : 0.0f;
  if constexpr (centered) {
    float squares = 0;
    for (int i = lane; i < dim; i += threads) squares += (own[i] - mean) * (own[i] - mean);
    total = sum_row<warp_rows>(squares) / static_cast<float>(dim);
  }
  const float scale = 1.0f / sqrtf(total + eps);
  for (int i = lane; i < dim; i += threads) {
    const float v = (own[i] - mean) * scale * weight[i];
    to[i] = bias ? v + bias[i] : v;
  }
}

// Rows from outside, behind each other from rows[first_value] on, in the place of those that `tokens` names from its
// first_token-th number on, or added to them.
template <bool adds>
__device__ __forceinline__ void insert_rows(const int* tokens, int first_token, const float* rows, int first_value,
                                            Rows out, int width) {
  start_next();
  wait_for_previous();
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const float v = rows[first_value + static_cast<size_t>(blockIdx.x) * width + i];
  float* to = out[tokens[first_token + blockIdx.x]] + i;
  *to = adds ? *to + v : v;
}

// A table of [position][pair] -> [row][pair], where a row has a position on each of several axes, [axis][row], and a
// pair is rotated by one of them.
__device__ __forceinline__ void gather_turns(const float2* table, const int* axis_of_pair, const int* axes, int rows,
                                             int pairs, float2* out) {
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, pair = blockIdx.y * blockDim.x + threadIdx.x;
  if (pair >= pairs) return;
  const size_t position = axes[static_cast<size_t>(axis_of_pair[pair]) * rows + row];
  out[static_cast<size_t>(row) * pairs + pair] = table[position * pairs + pair];
}

// The first 2 * pairs values of each head of `dim`, rotated by tables of [position][pair], or [row][pair] (`by_row`);
// the others as they are. `out` may be x: a thread has one pair.
__device__ __forceinline__ void rotate_rows(ConstRows x, const int* positions, const float2* table, Rows out, int heads,
                                            int dim, int pairs, bool neox, bool by_row) {
  start_next();
  wait_for_previous();
  const int row = blockIdx.x, units = dim - pairs, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= heads * units) return;
  const int head = i / units, pair = i % units;
  const float* from = x[row] + head * dim;
  float* to = out[row] + head * dim;
  if (pair >= pairs) {
    to[pair + pairs] = from[pair + pairs];
    return;
  }
  const int position = by_row ? row : positions[row];
  const size_t at = static_cast<size_t>(position < 0 ? 0 : position) * pairs + pair;
  const int first = neox ? pair : 2 * pair, second = neox ? pair + pairs : 2 * pair + 1;
  const float a = from[first], b = from[second], c = table[at].x, s = table[at].y;
  to[first] = a * c - b * s;
  to[second] = a * s + b * c;
}

}  // namespace fewbit
