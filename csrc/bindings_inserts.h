// What a step brings beside its tokens: rows to insert, positions on several axes, spans.
#pragma once
#include <map>
#include <vector>

#include "bindings.h"
#include "plan.h"

namespace fewbit {

constexpr size_t kMaxParts = 64;

// What the operations of a plan take.
class InsertUses {
 public:
  void add(size_t part, size_t width) {
    expect(part < kMaxParts, "number of a part, at most", part, kMaxParts - 1);
    if (part >= widths_.size()) widths_.resize(part + 1);
    if (widths_[part] && widths_[part] != width) throw std::invalid_argument("rows of a part have one width");
    widths_[part] = width;
  }
  void add_axis(size_t axis) { axes_ = std::max(axes_, axis + 1); }
  size_t parts() const { return widths_.size(); }
  size_t width(size_t part) const { return widths_[part]; }
  size_t axes() const { return axes_; }

 private:
  std::vector<size_t> widths_;  // 0: no operation takes the part
  size_t axes_ = 0;
};

// What a step brings, checked; it holds the arrays while the step runs.
class TakenInserts {
 public:
  TakenInserts(const InsertUses& uses, const nb::list& inserted, const std::optional<Array<const int32_t, 2>>& axes,
               const std::optional<Array<const int64_t, 2>>& spans, const Sequences& sequences, size_t tokens)
      : held_(inserted), parts_(uses.parts()) {
    for (const nb::handle& one : held_) take(uses, nb::cast<nb::tuple>(one), tokens);
    if (axes) {
      expect(axes->shape(1) == tokens, "positions on an axis", axes->shape(1), tokens);
      expect(axes->shape(0) >= uses.axes(), "axes, at least", axes->shape(0), uses.axes());
    }
    if (spans) take_spans(*spans, sequences, tokens);
  }
  const Inserted* parts() const { return held_.size() ? parts_.data() : nullptr; }
  const Span* spans() const { return spans_.empty() ? nullptr : spans_.data(); }

 private:
  void take(const InsertUses& uses, const nb::tuple& one, size_t tokens) {
    expect(one.size() == 3, "values of a part", one.size(), 3);
    const auto part = nb::cast<size_t>(one[0]);
    const auto numbers = nb::cast<Int32s>(one[1], false);
    const auto rows = nb::cast<Array<const float, 2>>(one[2], false);
    expect(part < uses.parts() && uses.width(part), "part, of", part, uses.parts());
    expect(rows.shape(0) == numbers.size(), "rows of a part", rows.shape(0), numbers.size());
    expect(rows.shape(1) == uses.width(part), "columns of a part", rows.shape(1), uses.width(part));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int32_t n = numbers.data()[i];
      if (n < 0 || static_cast<size_t>(n) >= tokens) throw std::invalid_argument("a row is inserted for no token");
    }
    parts_[part] = {numbers.data(), numbers.size(), rows.data()};
  }
  void take_spans(const Array<const int64_t, 2>& spans, const Sequences& sequences, size_t tokens) {
    expect(spans.shape(0) == tokens && spans.shape(1) == 2, "spans of tokens", spans.shape(0), tokens);
    for (size_t s = 0; s < sequences.count; ++s) {
      const int64_t first = sequences.q_starts[s], end = sequences.q_starts[s + 1], length = sequences.lengths[s];
      Span last{0, 0};
      for (int64_t r = first; r < end; ++r) {
        const Span own{spans.data()[2 * r], spans.data()[2 * r + 1]};
        const int64_t position = length - (end - r);
        const bool fits = own.begin >= last.begin && own.end >= last.end && own.begin <= position &&
                          own.end > position && own.end <= length;
        if (!fits) throw std::invalid_argument("a span has the position of its token, and the next one begins later");
        spans_.push_back(own);
        last = own;
      }
    }
  }

  nb::tuple held_;
  std::vector<Inserted> parts_;
  std::vector<Span> spans_;
};

}  // namespace fewbit
