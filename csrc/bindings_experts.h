// Routed experts for Python: what belongs to them in a plan, checked.
#pragma once
#include "bindings.h"
#include "plan.h"

namespace fewbit {

using Kept = std::vector<nb::object>;  // owners of arrays that a plan reads

// A matrix for each expert, (count, n, k), and a bias, (count, n). If rows are interleaved, each has its own sets.
inline plan::ExpertWeight expert_weight(plan::Weight w, const nb::handle& bias, size_t count, Kept& kept) {
  plan::ExpertWeight out{w};
  expect(w.n > 0 && w.n % count == 0, "rows of all experts, a multiple of their number", w.n, count);
  out.w.n /= count;
  expect(!w.at.interleaved || out.w.n % 16 == 0, "rows of an expert, over whole 16", out.w.n % 16, 0);
  if (!bias.is_none()) {
    const auto values = nb::cast<Floats>(bias, false);
    expect(values.shape(0) == count, "experts of a bias", values.shape(0), count);
    expect(values.shape(1) == out.w.n, "values of the bias", values.shape(1), out.w.n);
    kept.push_back(values.owner());
    out.bias = values.data();
  }
  return out;
}

// A number for each expert, or None.
inline const float* of_experts(const nb::handle& values, size_t count, Kept& kept) {
  if (values.is_none()) return nullptr;
  const auto row = nb::cast<Row>(values, false);
  expect(row.size() == count, "values of a routing, one for each expert", row.size(), count);
  kept.push_back(row.owner());
  return row.data();
}

// (top_k, score, normalize, scale, bias, groups, top_groups, group_top, expert_scale)
inline Routing routing_of(const nb::tuple& t, size_t count, Kept& kept) {
  expect(t.size() == 9, "parts of a routing", t.size(), 9);
  Routing out{count,
              nb::cast<size_t>(t[0]),
              score_named(nb::cast<std::string>(t[1])),
              nb::cast<bool>(t[2]),
              nb::cast<double>(t[3]),
              of_experts(t[4], count, kept),
              nb::cast<size_t>(t[5]),
              nb::cast<size_t>(t[6]),
              nb::cast<size_t>(t[7]),
              of_experts(t[8], count, kept)};
  expect(out.groups > 0 && count % out.groups == 0, "experts, a multiple of the groups", count, out.groups);
  expect(out.top_groups > 0 && out.top_groups <= out.groups, "groups that are chosen", out.top_groups, out.groups);
  expect(out.group_top == 1 || out.group_top == 2, "experts that a group is judged by, at most", out.group_top, 2);
  const size_t most = count / out.groups * out.top_groups;
  expect(out.top_k > 0 && out.top_k <= most, "experts of a row, at most", out.top_k, most);
  return out;
}

}  // namespace fewbit
