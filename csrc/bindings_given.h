// Rows that a plan is given from outside.
#pragma once
#include "bindings_recurrent.h"

namespace fewbit {

class GivenPlan : public RecurrentPlan {
 public:
  using RecurrentPlan::RecurrentPlan;
  void given(Buffer out) {
    expect_rows(out, false);
    if (given_) throw std::invalid_argument("a plan is given rows once");
    given_ = width(out);
    add_op(plan::Given{out});
  }

 protected:
  // The rows that a step is given: (tokens, columns), if the plan begins with such.
  const float* given_rows(const std::optional<Array<const float, 2>>& rows, size_t tokens) const {
    if (rows.has_value() != (given_ != 0)) {
      throw std::invalid_argument(given_ ? "the plan begins with rows that must be given"
                                         : "the plan is given no rows");
    }
    if (!rows) return nullptr;
    expect(rows->shape(0) == tokens, "rows that are given", rows->shape(0), tokens);
    expect(rows->shape(1) == given_, "columns of the rows that are given", rows->shape(1), given_);
    return rows->data();
  }

 private:
  size_t given_ = 0;  // columns of the rows that are given; 0: there are none
};

}  // namespace fewbit
