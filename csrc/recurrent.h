// Layers whose state each token changes: short convolutions, the gated delta rule, state-space scans. Rows of a step
// are those of its sequences, one after the other, tokens in order; results do not depend on how they are cut into
// steps, on the other sequences or on threads. Pointers and sizes have been checked by the caller.
#pragma once
#include <cstdint>

#include "attention.h"

namespace fewbit {

// A part of a layer's states, as floats: `slots` are all of them, each of `slot_bytes`.
struct StatePart {
  uint8_t* slots;
  size_t slot_bytes, offset;

  float* at(int32_t slot) const {
    return reinterpret_cast<float*>(slots + static_cast<size_t>(slot) * slot_bytes + offset);
  }
};

// Sequence s reads its state from slot reads[s] and writes it to writes[s], which nobody else reads or writes.
struct Recurrence {
  Sequences sequences;
  const int32_t *reads, *writes;
  int threads;
};

struct Conv {
  StatePart state;      // (taps - 1, columns): the last rows
  const float* weight;  // (taps, columns)
  const float* bias;    // or null
  size_t columns, taps;
  bool silu;
};
struct DeltaRule {
  StatePart state;  // (v_heads, dim, v_dim)
  size_t heads, v_heads, dim, v_dim;
  const float *decay, *dt_bias;  // of each head of v
  float scale;
  bool tiled;  // head h of v belongs to head h % heads of q and k, else to h / (v_heads / heads)
};
struct Scan {
  StatePart state;  // (heads, state_dim, dim)
  size_t heads, groups, dim, state_dim;
  const float *decay, *skip, *dt_bias;  // of each head
};

void conv(const Conv& op, const Recurrence& of, const float* x, float* out);
void delta_rule(const DeltaRule& op, const Recurrence& of, const float* q, const float* k, const float* v,
                const float* a, const float* b, float* out);
void scan(const Scan& op, const Recurrence& of, const float* x, const float* dt, const float* b, const float* c,
          float* out);

}  // namespace fewbit
