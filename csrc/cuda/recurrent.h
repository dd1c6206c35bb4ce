// Layers whose state each token changes, as in ops/recurrent.py. A step reads the state of sequence s from slot
// reads[s] and writes it to slot writes[s]; tokens come one after another, heads and columns are independent of each
// other.
//
// States are f32 between tokens too, so that results do not depend on how a text is cut into steps.
#pragma once
#include "row_maths.h"

namespace fewbit {

// Where an operation's part of the states lies, and the rows of each sequence. A sequence of length 0 is padding: it
// begins with zeros and is not kept; so are slots below 0. Rows of no sequence become zeros.
struct States {
  uint8_t* first;
  int slot_bytes, offset;
  const int *reads, *writes, *q_starts, *lengths;
  int sequences, tokens;

  __device__ __forceinline__ float* at(int slot) const {
    return slot < 0
               ? nullptr
               : reinterpret_cast<float*>(first + static_cast<size_t>(slot) * slot_bytes + static_cast<size_t>(offset));
  }
  __device__ __forceinline__ const float* read(int s) const { return lengths[s] > 0 ? at(reads[s]) : nullptr; }
  __device__ __forceinline__ float* write(int s) const { return lengths[s] > 0 ? at(writes[s]) : nullptr; }
};

// A thread a column: a causal convolution over kRows rows (blockIdx.z) of a sequence (blockIdx.y), then kind.
constexpr int kRows = 32;

template <int taps, Maths M>
__device__ __forceinline__ void conv(const States& states, ConstRows x, const float* weight, const float* bias,
                                     Rows out, int columns) {
  static_assert(taps - 1 <= kRows);
  start_next();
  wait_for_previous();
  const int column = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, chunk = blockIdx.z;
  if (column >= columns) return;
  if (s == states.sequences - 1)
    for (int row = states.q_starts[s + 1] + chunk; row < states.tokens; row += gridDim.z) out[row][column] = 0.0f;
  const int first = states.q_starts[s], count = states.q_starts[s + 1] - first, begin = chunk * kRows;
  if (begin >= count && chunk > 0) return;  // without new rows the first one still hands the state on
  const int end = count - begin < kRows ? count : begin + kRows;
  const float* old = states.read(s);
  auto value = [&](int i) {  // of row i of the sequence's new ones; those before are in the state
    return i >= 0 ? x[first + i][column] : old ? old[(taps - 1 + i) * columns + column] : 0.0f;
  };
  float w[taps], seen[taps];
#pragma unroll
  for (int tap = 0; tap < taps; ++tap) {
    w[tap] = weight[column * taps + tap];
    if (tap + 1 < taps) seen[tap + 1] = value(begin + tap - (taps - 1));
  }
  const float add = bias ? bias[column] : 0.0f;
  for (int i = begin; i < end; ++i) {
#pragma unroll
    for (int tap = 0; tap + 1 < taps; ++tap) seen[tap] = seen[tap + 1];
    seen[taps - 1] = value(i);
    float sum = 0;
#pragma unroll
    for (int tap = 0; tap < taps; ++tap) sum += seen[tap] * w[tap];
    out[first + i][column] = activated<M>(sum + add);
  }
  float* kept = states.write(s);
  if (chunk > 0 || !kept) return;
#pragma unroll
  for (int tap = 0; tap + 1 < taps; ++tap) seen[tap] = value(count - (taps - 1) + tap);
#pragma unroll
  for (int tap = 0; tap + 1 < taps; ++tap) kept[tap * columns + column] = seen[tap];
}

// What a head's state is read and changed with, rows of heads of `dim` (q, k) and `v_dim` (v, out); values of a head
// beside: a and b of the delta rule, dt of a scan (in a). Vectors have a value for each head of v.
struct Recurrence {
  ConstRows q, k, v, a, b;
  const float *decay, *dt_bias, *skip;
  float scale;
  int heads, v_heads, dim, v_dim;
  bool tiled;
};

// The delta rule, or a scan: a matrix (dim, v_dim) of head blockIdx.y of sequence blockIdx.z. A block has 32 columns of
// it, four lanes a column, each R rows in registers: row 4 r + lane % 4. Rows of q, k and v come through shared memory.
template <int R, bool is_delta>
__device__ __forceinline__ void recur(const States& states, const Recurrence& in, Rows out) {
  constexpr int D = 4 * R, T = R <= 32 ? 16 : 8;
  __shared__ float keys[T][D], queries[T][D], values[T][32], fades[T], rates[T];
  start_next();
  wait_for_previous();
  const int thread = threadIdx.x, part = thread % 4, c = thread / 4, s = blockIdx.z, head = blockIdx.y;
  const int column = blockIdx.x * 32 + c, to = head * in.v_dim + column;
  const bool real = column < in.v_dim;
  const int shared = in.tiled ? head % in.heads : head / (in.v_heads / in.heads);
  const int first = states.q_starts[s], last = states.q_starts[s + 1];
  if (s == states.sequences - 1 && part == 0 && real)
    for (int row = last; row < states.tokens; ++row) out[row][to] = 0.0f;
  const float* old = states.read(s);
  const size_t own = static_cast<size_t>(head) * in.dim * in.v_dim + column;
  float state[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = 4 * r + part;
    state[r] = old && real && row < in.dim ? old[own + static_cast<size_t>(row) * in.v_dim] : 0.0f;
  }
  for (int base = first; base < last; base += T) {
    const int count = last - base < T ? last - base : T;
    __syncthreads();
    for (int i = thread; i < count * D; i += blockDim.x) {
      const int t = i / D, row = i % D, from = shared * in.dim + row;
      keys[t][row] = row < in.dim ? in.k[base + t][from] : 0.0f;
      queries[t][row] = row < in.dim ? in.q[base + t][from] : 0.0f;
    }
    for (int i = thread; i < count * 32; i += blockDim.x) {
      const int v = blockIdx.x * 32 + i % 32;
      values[i / 32][i % 32] = v < in.v_dim ? in.v[base + i / 32][head * in.v_dim + v] : 0.0f;
    }
    if (thread < count) {
      const float step = softplus(in.a[base + thread][head] + in.dt_bias[head]);
      fades[thread] = expf(in.decay[head] * step);
      rates[thread] = is_delta ? sigmoid(in.b[base + thread][head]) : step;
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const float fade = fades[t], v = values[t][c];
      float known = 0, found = 0, both = 0;  // k @ S, q @ S, q @ k
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float key = keys[t][4 * r + part], query = queries[t][4 * r + part];
        state[r] *= fade;
        if constexpr (is_delta) known += key * state[r];
        found += query * state[r];
        both += query * key;
      }
#pragma unroll
      for (int w = 1; w <= 2; w *= 2) {
        if constexpr (is_delta) known += __shfl_xor_sync(~0u, known, w);
        found += __shfl_xor_sync(~0u, found, w);
        both += __shfl_xor_sync(~0u, both, w);
      }
      const float change = rates[t] * (is_delta ? v - known : v);
#pragma unroll
      for (int r = 0; r < R; ++r) state[r] += keys[t][4 * r + part] * change;
      const float y = found + both * change;
      if (part == 0 && real) out[base + t][to] = is_delta ? in.scale * y : y + in.skip[head] * v;
    }
  }
  float* kept = states.write(s);
  if (!kept || !real) return;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = 4 * r + part;
    if (row < in.dim) kept[own + static_cast<size_t>(row) * in.v_dim] = state[r];
  }
}

}  // namespace fewbit
