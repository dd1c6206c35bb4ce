// Adds low-rank terms: first t = A x of all products and adapters, then y += B t, panel by panel of each product. A
// panel takes one adapter after another, so that the order of sums does not depend on the threads.
#include "low_rank.h"

#include <algorithm>

#include "formats/read.h"
#include "linear.h"
#include "threads.h"

namespace fewbit {
namespace {

constexpr size_t kRanks = 4;      // of an item of work
constexpr size_t kWorth = 16384;  // values of A or B that are worth a piece of work

size_t grain(size_t work, size_t items) { return kWorth / (work / (items + 1) + 1) + 1; }

}  // namespace

void LowRankStep::find_pairs(const std::vector<LowRankOutput>& outputs, bool logits_only,
                             const StepAdapters& adapters) {
  pairs_.clear();
  items_ = t_size_ = work_ = 0;
  for (size_t o = 0; o < outputs.size(); ++o) {
    for (size_t i = 0; i < adapters.count; ++i) {
      const StepAdapter& one = adapters.data[i];
      const AdapterRows& rows = logits_only ? one.logits : one.tokens;
      if (outputs[o].product >= one.terms->size() || rows.count == 0) continue;
      const LowRankTerm& term = (*one.terms)[outputs[o].product];
      if (term.r == 0) continue;
      pairs_.push_back({&term, &rows, o, items_, t_size_});
      items_ += (term.r + kRanks - 1) / kRanks;
      t_size_ += rows.count * term.r;
      work_ += rows.count * term.r;
    }
  }
}

const LowRankStep::Pair& LowRankStep::pair_of(size_t item) const {
  return *(
      std::upper_bound(pairs_.begin(), pairs_.end(), item, [](size_t i, const Pair& pair) { return i < pair.first; }) -
      1);
}

void LowRankStep::scale(const Pair& pair, size_t first, size_t count, float* t) const {
  for (size_t j = 0; j < pair.rows->count; ++j) {
    const float by = pair.term->scale * pair.rows->weights[j];
    float* row = t + pair.t + j * pair.term->r;
    for (size_t i = first; i < first + count; ++i) row[i] *= by;
  }
}

void LowRankStep::down(const Pair& pair, size_t block, const float* x, size_t k, float* t) const {
  const LowRankTerm& term = *pair.term;
  const size_t first = block * kRanks, count = std::min(kRanks, term.r - first);
  if (term.a) {
    current_target().rows.low_rank.down(term.real, term.a + first * k * real_bytes(term.real), count, k, x,
                                        pair.rows->rows, pair.rows->count, t + pair.t + first, term.r);
  } else {
    for (size_t j = 0; j < pair.rows->count; ++j) {
      std::copy_n(x + static_cast<size_t>(pair.rows->rows[j]) * k + first, count, t + pair.t + j * term.r + first);
    }
  }
  scale(pair, first, count, t);
}

void LowRankStep::up(const std::vector<LowRankOutput>& outputs, const float* t, int threads) const {
  const auto panels = [](const LowRankOutput& one) { return (one.n + kLowRankPanel - 1) / kLowRankPanel; };
  size_t items = 0;
  for (const LowRankOutput& one : outputs) items += panels(one);
  const size_t each = work_ * kLowRankPanel / outputs.size() + 1;
  parallel_for(items, kWorth / each + 1, threads, [&](size_t begin, size_t end) {
    for (size_t item = begin; item < end; ++item) {
      size_t o = 0, panel = item;
      for (; panel >= panels(outputs[o]); ++o) panel -= panels(outputs[o]);
      const size_t n = outputs[o].n, first = panel * kLowRankPanel, width = std::min(kLowRankPanel, n - first);
      for (const Pair& pair : pairs_) {
        if (pair.output != o) continue;
        const LowRankTerm& term = *pair.term;
        float* y = outputs[o].y + first;
        if (term.b) {
          current_target().rows.low_rank.up(term.real, term.b + first * term.r * real_bytes(term.real), term.r, width,
                                            t + pair.t, pair.rows->rows, pair.rows->count, y, n);
          continue;
        }
        for (size_t j = 0; j < pair.rows->count; ++j) {
          float* row = y + static_cast<size_t>(pair.rows->rows[j]) * n;
          for (size_t c = 0; c < width; ++c) row[c] += t[pair.t + j * term.r + first + c];
        }
      }
    }
  });
}

void LowRankStep::add(const std::vector<LowRankOutput>& outputs, const float* x, size_t k, bool logits_only,
                      const StepAdapters& adapters, int threads) {
  find_pairs(outputs, logits_only, adapters);
  if (pairs_.empty()) return;
  float* t = t_.get<float>(t_size_);
  parallel_for(items_, grain(work_ * k, items_), threads, [&](size_t begin, size_t end) {
    for (size_t item = begin; item < end; ++item) {
      const Pair& pair = pair_of(item);
      down(pair, item - pair.first, x, k, t);
    }
  });
  up(outputs, t, threads);
}

void LowRankStep::add_rows(const LowRankOutput& output, const int32_t* tokens, const StepAdapters& adapters,
                           int threads) {
  outputs_.assign(1, output);
  find_pairs(outputs_, false, adapters);
  if (pairs_.empty()) return;
  float* t = t_.get<float>(t_size_);
  for (const Pair& pair : pairs_) {
    const LowRankTerm& term = *pair.term;
    const size_t bytes = real_bytes(term.real);
    for (size_t j = 0; j < pair.rows->count; ++j) {
      const uint8_t* row = term.a + static_cast<size_t>(tokens[pair.rows->rows[j]]) * term.r * bytes;
      for (size_t i = 0; i < term.r; ++i) t[pair.t + j * term.r + i] = read_real(term.real, row + i * bytes);
    }
    scale(pair, 0, term.r, t);
  }
  up(outputs_, t, threads);
}

}  // namespace fewbit
