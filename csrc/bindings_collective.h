// Rows that plans of several ranks make together.
#pragma once
#include "bindings_given.h"
#include "collective.h"

namespace fewbit {

class CollectivePlan : public GivenPlan {
 public:
  using GivenPlan::GivenPlan;
  void all_reduce(Buffer in, const nb::object& group, size_t rank, Buffer out) {
    expect_same(in, out);
    add_collective(in, group, rank, {}, out);
  }
  void all_gather(Buffer in, const nb::object& group, size_t rank, size_t first, Buffer out) {
    expect_rows(in, plan_.logits_only(out));
    const size_t end = first + width(in);
    expect(end >= first && end <= width(out), "columns of the result, at least", width(out), end);
    add_collective(in, group, rank, first, out);
  }

 private:
  void add_collective(Buffer in, const nb::object& group, size_t rank, std::optional<size_t> first, Buffer out) {
    auto* const ranks = nb::cast<ThreadCollective*>(group);
    expect(rank < ranks->ranks(), "rank", rank, ranks->ranks());
    expect(in != out, "a result that is not the input", out, in);
    add_op(plan::Collective{in, ranks, rank, first, out});
    keep_.push_back(group);
  }
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
