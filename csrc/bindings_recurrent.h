// Recurrent layers of plans for Python: their states, and the slots that a step reads and writes.
#pragma once
#include "bindings_plan.h"
#include "recurrent_kernels.h"

namespace fewbit {

using States = Array<uint8_t, 2>;  // (slots, bytes of a state)

// The slots of a plan's states: all layers have as many.
class Slots {
 public:
  // The part of a layer's states that begins at a byte and has so many floats.
  StatePart part(const States& states, size_t offset, size_t floats) {
    const size_t nbytes = states.shape(1), needed = times(floats, sizeof(float));
    expect(nbytes % sizeof(float) == 0, "bytes of a state, over whole floats", nbytes % sizeof(float), 0);
    expect(offset % sizeof(float) == 0, "first byte of a part, over whole floats", offset % sizeof(float), 0);
    expect(reinterpret_cast<uintptr_t>(states.data()) % sizeof(float) == 0, "alignment of states", 1, sizeof(float));
    expect(offset <= nbytes && needed <= nbytes - offset, "bytes of a state", nbytes, offset + needed);
    expect(states.shape(0) > 0, "slots", states.shape(0), 1);
    if (uses_.empty()) uses_.resize(states.shape(0));
    expect(states.shape(0) == uses_.size(), "slots", states.shape(0), uses_.size());
    return {states.data(), nbytes, offset};
  }
  bool any() const { return !uses_.empty(); }
  // A step's slots: nobody writes what another one reads or writes.
  void check(const std::optional<Int32s>& reads, const std::optional<Int32s>& writes, size_t sequences) {
    if (!any()) return;
    if (!reads || !writes)
      throw std::invalid_argument("the plan keeps states: a step needs slots to read and to write");
    for (const Int32s* slots : {&*reads, &*writes}) {
      expect(slots->size() == sequences, "slots, one for each sequence", slots->size(), sequences);
      for (size_t s = 0; s < sequences; ++s) expect_slot(slots->data()[s]);
    }
    for (size_t s = 0; s < sequences; ++s) use(reads->data()[s]) = true;
    size_t taken = 0;
    while (taken < sequences && !use(writes->data()[taken])) use(writes->data()[taken++]) = true;
    for (size_t s = 0; s < sequences; ++s) use(reads->data()[s]) = use(writes->data()[s]) = false;
    if (taken < sequences) {
      const std::string slot = std::to_string(writes->data()[taken]);
      throw std::invalid_argument("slot " + slot + " is written, and also read or written by another sequence");
    }
  }

 private:
  std::vector<bool>::reference use(int32_t slot) { return uses_[static_cast<size_t>(slot)]; }
  void expect_slot(int32_t slot) const {
    if (slot < 0 || static_cast<size_t>(slot) >= uses_.size()) {
      throw std::invalid_argument("slot " + std::to_string(slot) + " of " + std::to_string(uses_.size()));
    }
  }
  std::vector<bool> uses_;  // by slot, while a step is checked
};

class RecurrentPlan : public CheckedPlan {
 public:
  using CheckedPlan::CheckedPlan;
  void conv(Buffer in, States states, size_t offset, Floats weight, std::optional<Row> bias, bool silu, Buffer out) {
    const size_t taps = weight.shape(0), columns = width(in);
    expect(taps > 0 && taps <= kMaxTaps, "taps, at most", taps, kMaxTaps);
    expect(weight.shape(1) == columns, "columns of the convolution", weight.shape(1), columns);
    expect_same(in, out);
    expect_inputs({in}, out);
    const StatePart state = part(states, offset, times(taps - 1, columns));
    const float* b = bias ? keep(*bias, columns, "values of the bias") : nullptr;
    keep_.push_back(weight.owner());
    add_op(plan::ConvRows{{state, weight.data(), b, columns, taps, silu}, in, out});
  }
  void delta_rule(Buffer q, Buffer k, Buffer v, Buffer a, Buffer b, States states, size_t offset, size_t heads,
                  size_t v_heads, Row decay, Row dt_bias, float scale, bool tiled, Buffer out) {
    const size_t dim = head_width(q, heads), v_dim = head_width(v, v_heads);
    expect_same(q, k);
    expect_same(v, out);
    expect_inputs({q, k, v, a, b}, out);
    expect(v_heads % heads == 0, "heads of v, a multiple of those of q", v_heads, heads);
    for (const Buffer gate : {a, b}) expect(width(gate) == v_heads, "columns of a gate", width(gate), v_heads);
    const StatePart state = part(states, offset, times(times(v_heads, dim), v_dim));
    add_op(plan::DeltaRows{{state, heads, v_heads, dim, v_dim, keep(decay, v_heads, "values of decay"),
                            keep(dt_bias, v_heads, "values of dt_bias"), scale, tiled},
                           q,
                           k,
                           v,
                           a,
                           b,
                           out});
  }
  void scan(Buffer x, Buffer dt, Buffer b, Buffer c, States states, size_t offset, size_t heads, size_t groups,
            Row decay, Row skip, Row dt_bias, Buffer out) {
    const size_t dim = head_width(x, heads), state_dim = head_width(b, groups);
    expect_same(b, c);
    expect_same(x, out);
    expect_inputs({x, dt, b, c}, out);
    expect(heads % groups == 0, "heads, a multiple of the groups", heads, groups);
    expect(width(dt) == heads, "columns of dt", width(dt), heads);
    const StatePart state = part(states, offset, times(times(heads, dim), state_dim));
    add_op(plan::ScanRows{{state, heads, groups, dim, state_dim, keep(decay, heads, "values of decay"),
                           keep(skip, heads, "values of skip"), keep(dt_bias, heads, "values of dt_bias")},
                          x,
                          dt,
                          b,
                          c,
                          out});
  }

 protected:
  StatePart part(const States& states, size_t offset, size_t floats) {
    keep_.push_back(states.owner());
    return slots_.part(states, offset, floats);
  }

  Slots slots_;
};

}  // namespace fewbit
