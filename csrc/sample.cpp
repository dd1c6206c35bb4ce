// Sampling from rows of logits, without sorting the vocabulary.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

#include "dispatch.h"
#include "logit_changes.h"
#include "passes.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr float kNone = kNoLogit;
constexpr double kMaxLogit = std::numeric_limits<float>::max();
constexpr double kSmallest = 1e-35;  // of a range of logits: less is as good as none
constexpr double kColdest = 1e-30;   // temperature; what is colder changes nothing
constexpr double kSlack = 1e-3;      // in logarithms of weights: far more than rounding can do
constexpr size_t kFew = 512;         // candidates that are sorted at once

thread_local ThreadWorkspace group_tops, changed_logits, found_keys, key_weights, marks,
    tallies;  // of whoever does a row

size_t chunks_of(size_t n) { return (n + kChunk - 1) / kChunk; }

// A row and what its first pass tells.
struct LogitRow {
  const float* x;
  size_t n;
  float* groups;
  Extent extent;
  const Passes& passes = current_target().rows.passes;

  LogitRow(const float* x, size_t n) : x(x), n(n), groups(group_tops.get<float>(chunks_of(n) * kLanes)) {
    extent = passes.scan(x, n, groups);
  }
  double total(double by) const { return passes.total(x, n, {extent.top, static_cast<float>(by), 0}); }
  int32_t first_top() const {
    const float top = extent.top;
    const auto has_top = [&](const float* lanes) {  // without a branch for each of them
      int found = 0;
      for (size_t l = 0; l < kLanes; ++l) found |= lanes[l] == top;
      return found != 0;
    };
    size_t chunk = 0;
    while (!has_top(groups + chunk * kLanes)) ++chunk;
    return static_cast<int32_t>(std::find(x + chunk * kChunk, x + n, top) - x);
  }
  float reached_by(size_t k) const { return fewbit::reached_by(groups, chunks_of(n), k); }  // changes the groups
};

// Tokens that may be sampled, in buckets from likely to unlikely; few tokens are all in one bucket. Only a bucket whose
// tokens are walked over one by one is sorted.
class Candidates {
 public:
  // Some of the likeliest tokens: all of the buckets before, and the first `rank` of one. Its sum is their weight.
  struct Prefix {
    size_t bucket, rank;
    double sum;
  };

  // All tokens with logits of at least `least`.
  Candidates(const LogitRow& row, double by, float least, double min_p)
      : row_(row),
        scale_{row.extent.top, static_cast<float>(by), 0},
        keys_(found_keys.get<Key>(row.n + kLanes)),
        weights_(key_weights.get<float>(row.n)),
        tally_(*tallies.get<Tally>(1)) {
    const size_t count = row.passes.collect(row.x, row.n, least, kFew, keys_);
    const float likely = static_cast<float>(min_p);
    if (count <= kFew)
      take_all(count, likely);
    else
      deal(least, likely);
  }
  size_t likely() const { return likely_; }  // tokens at least min_p times as likely as the likeliest
  Prefix all() const {
    Prefix out{buckets_, 0, 0};
    for (size_t b = 0; b < buckets_; ++b) out.sum += tally_.sums[0][b];
    return out;
  }
  // The shortest part of a prefix of which enough(tokens, sum of weights) holds, or all of it if there is none.
  template <class Enough>
  Prefix shorten(const Prefix& from, Enough enough) {
    size_t count = 0;
    double sum = 0;
    for (size_t b = 0; b < from.bucket + (from.rank > 0); ++b) {
      const size_t inside = b < from.bucket ? tally_.counts[0][b] : from.rank;
      if (b < from.bucket && !enough(count + inside, sum + tally_.sums[0][b])) {
        count += inside;
        sum += tally_.sums[0][b];
        continue;
      }
      open(b);
      for (size_t rank = 0; rank < inside;) {
        sum += static_cast<double>(weights_[rank++]);
        if (enough(++count, sum)) return {b, rank, sum};
      }
    }
    return from;
  }
  int32_t last_of(Prefix of) {
    while (of.rank == 0) of.rank = tally_.counts[0][--of.bucket];
    open(of.bucket);
    return id_of(keys_[of.rank - 1]);
  }

 private:
  void take_all(size_t count, float likely) {
    sort(count);
    open_ = 0;
    buckets_ = 1;
    tally_.counts[0][0] = static_cast<uint32_t>(count);
    tally_.sums[0][0] = 0;
    for (size_t i = 0; i < count; ++i) {
      tally_.sums[0][0] += static_cast<double>(weights_[i]);
      likely_ += weights_[i] >= likely;
    }
  }
  void deal(float least, float likely) {
    const double range = static_cast<double>(scale_.top) - static_cast<double>(least);
    scale_.steps = static_cast<float>(kBuckets * (1 - 1e-6) / std::clamp(range, kSmallest, kMaxLogit));
    buckets_ = kBuckets;
    likely_ = row_.passes.tally(row_.x, row_.n, scale_, likely, &tally_);
  }
  void open(size_t bucket) {
    if (bucket == open_) return;
    sort(row_.passes.members(row_.x, row_.n, scale_, bucket, keys_));
    open_ = bucket;
  }
  void sort(size_t count) {
    if (!std::is_sorted(keys_, keys_ + count, std::greater<>())) std::sort(keys_, keys_ + count, std::greater<>());
    for (size_t i = 0; i < count; ++i) {
      const bool is_same = i > 0 && keys_[i] >> 32 == keys_[i - 1] >> 32;
      weights_[i] = is_same ? weights_[i - 1] : weight_of(logit_of(keys_[i]), scale_);
    }
  }

  const LogitRow& row_;
  WeightScale scale_;
  Key* keys_;  // of the open bucket, likeliest first
  float* weights_;
  Tally& tally_;
  size_t buckets_ = 0, open_ = kBuckets, likely_ = 0;
};

// How many times less likely than the likeliest a token may be and still be kept, as a logarithm. Without top_k, and
// with `total` the weight of all tokens: those that are less likely weigh together less than top_p leaves out.
double depth(const SamplingParams& params, double uniform, size_t n, double total) {
  double out = std::numeric_limits<double>::infinity();
  if (params.top_p < 1 || params.min_p == 0) {
    const double kept = params.top_p < 1 ? params.top_p : uniform;
    out = std::log(static_cast<double>(n) / ((1 - kept) * total)) + kSlack;
  }
  if (params.min_p > 0) out = std::min(out, kSlack - std::log(params.min_p));
  return out;
}

// `total_at_1`: the weight of all tokens at temperature 1, where it is known.
int32_t sample_row(const LogitRow& row, const SamplingParams& params, double uniform, double total_at_1 = 0) {
  if (params.temperature == 0) return row.first_top();
  const double temperature = std::max(params.temperature, kColdest), by = 1 / temperature;
  const size_t top_k = params.top_k < static_cast<double>(row.n) ? static_cast<size_t>(params.top_k) : 0;
  const bool needs_total = top_k == 0 && (params.top_p < 1 || params.min_p == 0);
  const double total = !needs_total ? 0 : by == 1 && total_at_1 > 0 ? total_at_1 : row.total(by);
  const double least = top_k ? static_cast<double>(row.reached_by(top_k))
                             : row.extent.top - temperature * depth(params, uniform, row.n, total);
  const auto bound = static_cast<float>(std::max<double>(least, row.extent.lowest));

  Candidates candidates(row, by, bound, params.min_p);
  Candidates::Prefix kept = candidates.all();
  if (needs_total) kept.sum = total;
  if (top_k) kept = candidates.shorten(kept, [&](size_t count, double) { return count >= top_k; });
  if (params.top_p < 1) {
    const double enough = params.top_p * kept.sum;
    kept = candidates.shorten(kept, [&](size_t, double sum) { return sum >= enough; });
  }
  if (params.min_p > 0) {
    kept = candidates.shorten(kept, [&](size_t count, double) { return count >= candidates.likely(); });
  }
  const double enough = uniform * kept.sum;
  return candidates.last_of(candidates.shorten(kept, [&](size_t, double sum) { return sum > enough; }));
}

// Row r with bias, mask and penalties; null: it has none of them.
const float* changed(const float* x, size_t n, const Changes& by, const SamplingParams& params, size_t r) {
  const auto& seen = by.seen;
  const auto& bias = by.bias;
  const uint32_t* mask = by.masks.of(r);
  refuse_twice(seen.tokens + seen.first(r), seen.count(r), n, "seen tokens", r, marks);
  refuse_twice(bias.tokens + bias.first(r), bias.count(r), n, "bias", r, marks);
  const size_t penalized = penalizes(params) ? seen.count(r) : 0;
  if (!mask && bias.count(r) == 0 && penalized == 0) return nullptr;
  float* out = changed_logits.get<float>(n);
  if (mask)
    apply_mask(x, n, mask, out);
  else
    std::copy_n(x, n, out);
  add_bias(bias.tokens + bias.first(r), bias.numbers + bias.first(r), bias.count(r), out);
  penalize(params, seen.tokens + seen.first(r), seen.numbers + seen.first(r), penalized, out);
  return out;
}

float logprob(const LogitRow& row, double total, int32_t token) {
  return static_cast<float>(static_cast<double>(row.x[token]) - static_cast<double>(row.extent.top) - std::log(total));
}

// Calls f(row number, row) for every row that has logits; names the others, and those of which f says that nothing is
// allowed there.
template <class Fn>
BadRows for_rows(const LogitRows& rows, int threads, Fn f) {
  BadRows bad;
  std::mutex lock;
  parallel_for(rows.count, 16384 / (rows.vocab + 1) + 1, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const LogitRow row(rows.data + r * rows.vocab, rows.vocab);
      BadRow why = BadRow::nothing_allowed;
      if (!row.extent.valid)
        why = BadRow::bad_logits;
      else if (row.extent.top == kNone)
        why = BadRow::no_logits;
      else if (f(r, row))
        continue;
      const std::lock_guard<std::mutex> hold(lock);
      bad.emplace_back(r, why);
    }
  });
  std::sort(bad.begin(), bad.end());
  return bad;
}

}  // namespace

BadRows sample(const LogitRows& rows, const SamplingParams* params, const double* uniforms, const Changes& changes,
               int32_t* tokens, float* logprobs, int threads) {
  return for_rows(rows, threads, [&](size_t r, const LogitRow& row) {
    const double total = row.total(1);
    if (const float* y = changed(row.x, row.n, changes, params[r], r)) {
      const LogitRow own(y, row.n);
      if (own.extent.top == kNone) return false;
      tokens[r] = sample_row(own, params[r], uniforms[r]);
    } else {
      tokens[r] = sample_row(row, params[r], uniforms[r], total);
    }
    logprobs[r] = logprob(row, total, tokens[r]);
    return true;
  });
}

BadRows log_probabilities(const LogitRows& rows, const int32_t* tokens, float* out, int threads) {
  return for_rows(rows, threads, [&](size_t r, const LogitRow& row) {
    out[r] = logprob(row, row.total(1), tokens[r]);
    return true;
  });
}

BadRows top_tokens(const float* x, size_t vocab, size_t count, int32_t* tokens, float* logprobs) {
  return for_rows({x, 1, vocab}, 1, [&](size_t, const LogitRow& row) {
    if (count == 0) return true;
    const double total = row.total(1);
    Key* keys = found_keys.get<Key>(vocab + kLanes);
    const size_t found = row.passes.collect(x, vocab, row.reached_by(count), vocab, keys);
    if (count < found) std::nth_element(keys, keys + count, keys + found, std::greater<>());
    std::sort(keys, keys + count, std::greater<>());
    for (size_t i = 0; i < count; ++i) {
      tokens[i] = id_of(keys[i]);
      logprobs[i] = logprob(row, total, tokens[i]);
    }
    return true;
  });
}

}  // namespace fewbit
