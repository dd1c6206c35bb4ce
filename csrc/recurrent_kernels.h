// What recurrent layers do with rows and with the state of a head, one instruction set at a time: see
// kernels/recurrent.h.
#pragma once
#include <cstddef>

namespace fewbit {

constexpr size_t kMaxTaps = 64;

// The tokens of one sequence in one head, in order. Pointers are those of the first token; a stride is how many floats
// further the next one has its own. The state, (dim, v_dim), is read from `from` and written to `to`.
struct StateHead {
  size_t tokens, dim, v_dim;
  const float* in;    // what the state's rows take from `v`: k, or b
  const float* read;  // what is read of the state's rows: q, or c
  const float *v, *fade, *gate;
  size_t in_stride, v_stride, gate_stride;  // in and read have the same, v and out, fade and gate
  float factor;                             // of the output, or of v in it
  const float* from;
  float* to;
  float* out;
};

struct RecurrentKernels {
  // out = sum of rows[tap] * weight[tap] + bias, `stride` floats between the taps of the weight.
  void (*conv)(const float* const* rows, size_t taps, const float* weight, size_t stride, const float* bias, size_t n,
               float* out);
  // Some columns of v, and of the state.
  void (*delta_rule)(const StateHead& head, size_t begin, size_t end);
  void (*scan)(const StateHead& head, size_t begin, size_t end);
};

}  // namespace fewbit
