// Candidates of a chain of samplers: see chain_candidates.h.
#include "chain_candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "dispatch.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kFirst = 128;   // candidates that are ranked at first
constexpr size_t kRadix = 4096;  // keys from which on counting their digits is faster than comparing them
constexpr size_t kExact = 4096;  // weights in double precision; of more candidates one changes little

thread_local ThreadWorkspace chain_groups, chain_keys, chain_spare, chain_weights;

double logit(Key key) { return static_cast<double>(logit_of(key)); }

// The smallest float that is not below a bound.
float float_from(double bound) {
  constexpr double most = std::numeric_limits<float>::max();
  if (!(bound > -most)) return -std::numeric_limits<float>::max();
  const auto f = static_cast<float>(std::min(bound, most));
  return static_cast<double>(f) < bound ? std::nextafter(f, std::numeric_limits<float>::infinity()) : f;
}

// Greatest keys first. Keys come in the order of ids, which stays that of equal logits.
void sort_keys(Key* keys, size_t n) {
  if (n < kRadix) {
    std::sort(keys, keys + n, std::greater<>());
    return;
  }
  Key* from = keys;
  Key* to = chain_spare.get<Key>(n);
  for (const auto& [shift, bits] : {std::pair{32, 11}, std::pair{43, 11}, std::pair{54, 10}}) {
    const Key mask = (Key{1} << bits) - 1;
    uint32_t starts[2048] = {};
    for (size_t i = 0; i < n; ++i) ++starts[mask - (from[i] >> shift & mask)];
    uint32_t next = 0;
    for (uint32_t& start : starts) next += std::exchange(start, next);
    for (size_t i = 0; i < n; ++i) to[starts[mask - (from[i] >> shift & mask)]++] = from[i];
    std::swap(from, to);
  }
  if (from != keys) std::copy_n(from, n, keys);
}

void add(Deviation& to, double below) {
  to.sum += below;
  to.squares += below * below;
  ++to.count;
}

double sigma(const Deviation& of) {
  const double count = static_cast<double>(of.count), mean = of.sum / count;
  return std::sqrt(std::max(of.squares / count - mean * mean, 0.0));
}

}  // namespace

ChainCandidates::ChainCandidates(float* x, size_t n)
    : x_(x),
      n_(n),
      groups_(chain_groups.get<float>((n + kChunk - 1) / kChunk * kLanes)),
      keys_(chain_keys.get<Key>(n + kLanes)),
      passes_(current_target().rows.passes) {}

bool ChainCandidates::empty() { return ranked_ ? count_ == 0 : top() == static_cast<double>(kNone); }

double ChainCandidates::top() {
  if (ranked_) return logit(keys_[0]);
  if (!has_extent_) extent_ = passes_.scan(x_, n_, groups_);
  has_extent_ = true;
  return static_cast<double>(extent_.top);
}

double ChainCandidates::weight(Key key) {
  const double below = (logit(key) - top()) * by_;
  return count_ <= kExact ? std::exp(below) : static_cast<double>(exp_of(static_cast<float>(below)));
}

float* ChainCandidates::row() {
  if (ranked_) {
    std::fill_n(x_, n_, kNone);
    for (size_t i = 0; i < count_; ++i) x_[id_of(keys_[i])] = static_cast<float>(logit(keys_[i]) * by_);
    ranked_ = false;
  } else if (by_ != 1) {
    const auto factor = static_cast<float>(by_);
    for (size_t i = 0; i < n_; ++i) x_[i] *= factor;
  }
  by_ = 1;
  changed();
  return x_;
}

WeightSums ChainCandidates::sums() {
  if (!ranked_) return weigh(x_, n_, {static_cast<float>(top()), static_cast<float>(by_), 0});
  WeightSums out{0, 0, count_};
  for (size_t i = 0; i < count_; ++i) {
    const double w = weight(keys_[i]);
    out.total += w;
    out.weighted += w > 0 ? w * (logit(keys_[i]) - top()) * by_ : 0;
  }
  return out;
}

size_t ChainCandidates::find_top(size_t most) {
  extent_ = passes_.scan(x_, n_, groups_);
  const float least = most < n_ ? reached_by(groups_, (n_ + kChunk - 1) / kChunk, most) : kNone;
  size_t found = passes_.collect(x_, n_, std::max(least, extent_.lowest), n_, keys_);
  if (found > most) {
    std::nth_element(keys_, keys_ + most, keys_ + found, std::greater<>());
    std::sort(keys_, keys_ + most, std::greater<>());
    return most;
  }
  sort_keys(keys_, found);
  return found;
}

void ChainCandidates::rank_all() {
  if (ranked_) return;
  count_ = find_top(n_);
  ranked_ = true;
}

void ChainCandidates::keep_top(size_t most) {
  if (!ranked_) count_ = find_top(std::min(most, n_));
  ranked_ = true;
  count_ = std::min(count_, most);
}

void ChainCandidates::keep_above(double least) {
  if (ranked_) {
    while (count_ > 1 && logit(keys_[count_ - 1]) < least) --count_;
    return;
  }
  drop_below(x_, n_, float_from(std::min(least, top())));
}

void ChainCandidates::keep_likely(double weight) { keep_above(top() + std::log(weight) / by_); }

template <class Enough>
size_t ChainCandidates::count_until(double total, Enough enough, double& last) {
  const auto walked = [&](size_t found, bool is_all) -> size_t {
    double sum = 0;
    for (size_t i = 0; i < found; ++i) {
      sum += last = weight(keys_[i]);
      if (enough(sum, total)) return i + 1;
    }
    return is_all ? found : 0;  // rounding may leave the last sum short of the total
  };
  for (size_t most = kFirst; !ranked_ && 4 * most < n_; most *= 8) {
    count_ = find_top(most);
    if (const size_t count = walked(count_, false)) {
      ranked_ = true;
      return count;
    }
  }
  rank_all();
  return walked(count_, true);
}

void ChainCandidates::keep_share(double share) {
  const double total = sums().total;
  double last;
  count_ = count_until(total, [&](double sum, double whole) { return sum >= share * whole; }, last);
}

void ChainCandidates::keep_typical(double share) {
  rank_all();
  const WeightSums all = sums();
  const double log_total = std::log(all.total), entropy = log_total - all.weighted / all.total, largest = top();
  double* weights = chain_weights.get<double>(count_);
  for (size_t i = 0; i < count_; ++i) weights[i] = weight(keys_[i]);
  const auto distance = [&](size_t i) { return std::abs(log_total + (largest - logit(keys_[i])) * by_ - entropy); };
  const auto is_left = [&](size_t i) { return log_total + (largest - logit(keys_[i])) * by_ <= entropy; };
  size_t left = 0;  // candidates before it are more likely than the entropy says
  for (size_t step = count_; step > 0; step /= 2) {
    while (left + step <= count_ && is_left(left + step - 1)) left += step;
  }
  // Outwards from there, the nearest first. Equal logits on the left are taken from the lower id on.
  size_t first = left, end = left, gap_first = left, gap_end = left;
  double sum = 0;
  const double wanted = share * all.total;
  while ((first == end || sum < wanted) && (first > 0 || end < count_)) {
    const bool takes_left = first > 0 && (end == count_ || distance(first - 1) <= distance(end));
    if (!takes_left) {
      sum += weights[end++];
      continue;
    }
    size_t begin = first - 1;
    while (begin > 0 && keys_[begin - 1] >> 32 == keys_[first - 1] >> 32) --begin;
    size_t taken = begin;
    while (taken < first && (taken == begin || sum < wanted)) sum += weights[taken++];
    gap_first = taken, gap_end = first;
    first = begin;
  }
  size_t kept = 0;
  for (size_t i = first; i < end; ++i) {
    if (i < gap_first || i >= gap_end) keys_[kept++] = keys_[i];
  }
  count_ = kept;
}

void ChainCandidates::drop_likely(double threshold) {
  const double total = sums().total;
  if (!ranked_) {
    const double least = top() + std::log(threshold * total) / by_;
    const size_t found =
        passes_.collect(x_, n_, float_from(std::max(least, static_cast<double>(extent_.lowest))), n_, keys_);
    if (found < 2) return;
    const Key last = *std::min_element(keys_, keys_ + found);
    for (size_t i = 0; i < found; ++i) {
      if (keys_[i] != last) x_[id_of(keys_[i])] = kNone;
    }
    changed();
    return;
  }
  size_t likely = 0;
  while (likely < count_ && weight(keys_[likely]) >= threshold * total) ++likely;
  if (likely < 2) return;
  std::copy(keys_ + (likely - 1), keys_ + count_, keys_);
  count_ -= likely - 1;
}

void ChainCandidates::keep_n_sigma(double sigmas) {
  const double largest = top();
  Deviation found{0, 0, 0};
  if (!ranked_) {
    found = deviation(x_, n_, static_cast<float>(largest));
  } else {
    for (size_t i = 0; i < count_; ++i) add(found, logit(keys_[i]) - largest);
  }
  keep_above(largest - sigmas * sigma(found));
}

void ChainCandidates::keep_surprise(double bits) {
  const double total = sums().total, least_weight = total * std::exp2(-bits);
  if (least_weight > 1)
    keep_top(1);
  else
    keep_likely(least_weight);
}

double ChainCandidates::entropy_share() {
  const WeightSums all = sums();
  if (all.count < 2) return -1;
  const double entropy = std::log(all.total) - all.weighted / all.total;
  return std::min(std::max(entropy, 0.0) / std::log(static_cast<double>(all.count)), 1.0);
}

double ChainCandidates::draw(double uniform, Key& key) {
  const double total = sums().total;
  double last = 0;
  key = keys_[count_until(total, [&](double sum, double whole) { return sum > uniform * whole; }, last) - 1];
  return last / total;
}

}  // namespace fewbit
