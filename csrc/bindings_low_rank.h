// Adapters of plans for Python: their terms are checked when they are given, their rows at each step.
#pragma once
#include "bindings.h"
#include "low_rank.h"

namespace fewbit {

// The low-rank terms of an adapter, and the arrays that hold them. It does not change once a step uses it.
class PyAdapter {
 public:
  // `a` and `b` are values of `kind` as bytes; None: the identity.
  void add(size_t product, std::optional<Bytes> a, std::optional<Bytes> b, const std::string& kind, size_t r, size_t k,
           size_t n, float scale, bool is_table) {
    constexpr size_t kMostProducts = 1 << 20;
    expect(product < kMostProducts, "number of a product, at most", product, kMostProducts);
    for (const size_t size : {r, k, n}) {
      if (size == 0 || size > kLargest / 8) throw std::invalid_argument("a term has at least one rank, row and column");
    }
    LowRankTerm term{real_named(kind), nullptr, nullptr, r, k, n, scale, is_table};
    const size_t bytes = real_bytes(term.real);
    if (!a) expect(r == k && !is_table, "ranks of a term without A", r, k);
    if (!b) expect(r == n, "ranks of a term without B", r, n);
    if (a) term.a = keep(*a, times(times(r, k), bytes), "bytes of A");
    if (b) term.b = keep(*b, times(times(n, r), bytes), "bytes of B");
    if (product >= terms_.size()) terms_.resize(product + 1);
    terms_[product] = term;
  }
  const std::vector<LowRankTerm>& terms() const { return terms_; }

 private:
  static Real real_named(const std::string& name) {
    if (name == "f32") return Real::f32;
    if (name == "f16") return Real::f16;
    if (name == "bf16") return Real::bf16;
    throw std::invalid_argument("terms of adapters are f32, f16 or bf16, not " + name);
  }
  const uint8_t* keep(const Bytes& data, size_t nbytes, const char* what) {
    expect(data.size() == nbytes, what, data.size(), nbytes);
    keep_.push_back(data.owner());
    return data.data();
  }

  std::vector<LowRankTerm> terms_;
  std::vector<nb::object> keep_;
};

// The products of a plan that adapters may add to.
class LowRankUses {
 public:
  struct Use {
    size_t product, k, n;
    bool is_table;
  };
  void add(const Use& use) { uses_.push_back(use); }
  void check(const std::vector<LowRankTerm>& terms) const {
    for (const Use& use : uses_) {
      if (use.product >= terms.size() || terms[use.product].r == 0) continue;
      const LowRankTerm& term = terms[use.product];
      expect(term.k == use.k, "columns of A", term.k, use.k);
      expect(term.n == use.n, "rows of B", term.n, use.n);
      expect(term.is_table == use.is_table, "terms of a table", term.is_table, use.is_table);
    }
  }

 private:
  std::vector<Use> uses_;
};

// The adapters of a step: (adapter, rows, weights, rows of logits, their weights) of each.
class TakenAdapters {
 public:
  TakenAdapters(const nb::list& given, const LowRankUses& uses, size_t tokens, size_t logits) : held_(given) {
    adapters_.reserve(held_.size());
    for (const nb::handle& one : held_) {
      const auto parts = nb::cast<nb::tuple>(one);
      expect(parts.size() == 5, "parts of an adapter", parts.size(), 5);
      const auto& adapter = nb::cast<const PyAdapter&>(parts[0]);
      uses.check(adapter.terms());
      adapters_.push_back({&adapter.terms(), rows(parts[1], parts[2], tokens), rows(parts[3], parts[4], logits)});
    }
  }
  StepAdapters adapters() const { return {adapters_.data(), adapters_.size()}; }

 private:
  static AdapterRows rows(const nb::handle& numbers, const nb::handle& weights, size_t count) {
    const auto ids = nb::cast<Int32s>(numbers, false);
    const auto by = nb::cast<Row>(weights, false);
    expect(ids.size() == by.size(), "weights of an adapter's rows", by.size(), ids.size());
    int64_t last = -1;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t row = ids.data()[i];
      if (row <= last || static_cast<size_t>(row) >= count)
        throw std::invalid_argument("rows of an adapter must ascend and be rows of the step");
      last = row;
    }
    return {ids.data(), by.data(), ids.size()};
  }

  nb::tuple held_;  // so that nobody takes them away while the step runs
  std::vector<StepAdapter> adapters_;
};

}  // namespace fewbit
