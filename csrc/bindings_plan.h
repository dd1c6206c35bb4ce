// What every operation of a plan is checked by when it is recorded.
#pragma once
#include "bindings.h"
#include "plan.h"

namespace fewbit {

using plan::Buffer;

// A plan and the arrays that it reads.
class CheckedPlan {
 public:
  explicit CheckedPlan(bool batch_invariant) : plan_(batch_invariant) {}

 protected:
  void expect_open() const {
    if (ready_) throw std::invalid_argument("the plan has its result: it takes no more buffers and operations");
  }
  void add_op(plan::Op op) {
    expect_open();
    plan_.add(std::move(op));
  }
  size_t width(Buffer b) const {
    expect(b < plan_.buffers(), "number of a buffer", b, plan_.buffers());
    return plan_.width(b);
  }
  size_t head_width(Buffer b, size_t heads) const {
    expect(heads > 0 && width(b) % heads == 0, "columns, a multiple of the heads", width(b), heads);
    return width(b) / heads;
  }
  void expect_rows(Buffer b, bool logits_only) const {
    width(b);
    if (plan_.logits_only(b) != logits_only)
      throw std::invalid_argument("rows of all tokens and rows of logits are mixed");
  }
  void expect_same(Buffer a, Buffer b) const {
    expect(width(a) == width(b), "columns of the result", width(b), width(a));
    expect_rows(a, plan_.logits_only(b));
  }
  // Rows of all tokens, and none of them those of the result.
  void expect_inputs(std::initializer_list<Buffer> inputs, Buffer out) const {
    expect_rows(out, false);
    for (const Buffer b : inputs) {
      expect_rows(b, false);
      expect(b != out, "a result that is not an input", out, b);
    }
  }
  const float* keep(const Row& values, size_t count, const char* what) {
    expect(values.size() == count, what, values.size(), count);
    keep_.push_back(values.owner());
    return values.data();
  }
  plan::RowNorm norm_of(const std::optional<Row>& weight, float eps, size_t n) {
    if (!weight) return {};
    return {keep(*weight, n, "weights of the norm"), eps};
  }
  plan::Weight weight(const nb::tuple& w, size_t k) {
    expect_open();
    const PyMatrix m = cast_matrix(w);
    const Matrix checked = m.of(k);
    keep_.push_back(m.data.owner());
    return {m.format, checked.at, checked.data, m.n, k};
  }

  Plan plan_;
  std::vector<nb::object> keep_;
  bool ready_ = false;  // it has its result
};

}  // namespace fewbit
