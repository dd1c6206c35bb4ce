// Rows that come from outside of a plan, or from the plans of other ranks.
#pragma once
#include "bindings_recurrent.h"
#include "collective.h"

namespace fewbit {

class CollectivePlan : public RecurrentPlan {
 public:
  using RecurrentPlan::RecurrentPlan;
  void given(Buffer out) {
    expect_rows(out, false);
    if (given_) throw std::invalid_argument("a plan is given rows once");
    given_ = width(out);
    add_op(plan::Given{out});
  }
  void all_reduce(Buffer in, const nb::object& group, size_t rank, Buffer out) {
    expect_same(in, out);
    add_collective(in, group, rank, true, out);
  }
  void all_gather(Buffer in, const nb::object& group, size_t rank, Buffer out) {
    expect_rows(in, plan_.logits_only(out));
    const size_t columns = times(width(in), nb::cast<ThreadCollective*>(group)->ranks());
    expect(width(out) == columns, "columns of the result", width(out), columns);
    add_collective(in, group, rank, false, out);
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
  void add_collective(Buffer in, const nb::object& group, size_t rank, bool sums, Buffer out) {
    auto* const ranks = nb::cast<ThreadCollective*>(group);
    expect(rank < ranks->ranks(), "rank", rank, ranks->ranks());
    expect(in != out, "a result that is not the input", out, in);
    add_op(plan::Collective{in, ranks, rank, sums, out});
    keep_.push_back(group);
  }

  size_t given_ = 0;  // columns of the rows that are given; 0: there are none
};

inline void bind_collective(nb::module_& m) {
  nb::class_<ThreadCollective>(m, "ThreadCollective", "Joins the rows of plans that run in threads of their own.")
      .def(
          "__init__",
          [](ThreadCollective* self, size_t ranks) {
            expect(ranks >= 1 && ranks <= static_cast<size_t>(kMaxThreads), "ranks", ranks,
                   static_cast<size_t>(kMaxThreads));
            new (self) ThreadCollective(ranks);
          },
          nb::arg("ranks"))
      .def("abort", &ThreadCollective::abort)
      .def("reset", &ThreadCollective::reset);
}

}  // namespace fewbit
