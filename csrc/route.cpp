// Which experts a row goes to.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "experts.h"

namespace fewbit {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kTaken = std::numeric_limits<double>::quiet_NaN();

thread_local std::vector<double> probabilities, ranks, of_groups;  // kept
thread_local std::vector<uint32_t> best_groups;

// The places of the largest values, of equal ones the first. What is no number comes last.
void take_best(std::vector<double>& values, size_t most, uint32_t* out) {
  for (double& value : values) value = std::isnan(value) ? kNever : value;
  for (size_t i = 0; i < most; ++i) {
    size_t best = 0;
    for (size_t e = 0; e < values.size(); ++e) {
      if (std::isnan(values[best]) || values[e] > values[best]) best = e;
    }
    values[best] = kTaken;
    out[i] = static_cast<uint32_t>(best);
  }
}

void softmax(double* x, size_t count) {
  const double most = *std::max_element(x, x + count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += x[i] = std::exp(x[i] - most);
  for (size_t i = 0; i < count; ++i) x[i] /= sum;
}

// A group is as good as its best expert, or as the sum of its two best.
double of_group(const double* ranks, size_t size, size_t top) {
  double first = kNever, second = kNever;
  for (size_t e = 0; e < size; ++e) {
    second = std::max(second, std::min(first, ranks[e]));
    first = std::max(first, ranks[e]);
  }
  return top == 2 && size > 1 ? first + second : first;
}

// Experts of all but the best groups can no longer be chosen.
void leave_groups(const Routing& routing) {
  const size_t size = routing.count / routing.groups;
  of_groups.resize(routing.groups);
  best_groups.resize(routing.top_groups);
  for (size_t g = 0; g < routing.groups; ++g) of_groups[g] = of_group(&ranks[g * size], size, routing.group_top);
  take_best(of_groups, routing.top_groups, best_groups.data());
  for (size_t g = 0; g < routing.groups; ++g) {
    if (std::find(best_groups.begin(), best_groups.end(), g) != best_groups.end()) continue;
    std::fill_n(&ranks[g * size], size, kNever);
  }
}

}  // namespace

Score score_named(const std::string& name) {
  if (name == "softmax") return Score::softmax;
  if (name == "sigmoid") return Score::sigmoid;
  if (name == "softmax_top") return Score::softmax_top;
  throw std::invalid_argument("scores are softmax, sigmoid and softmax_top, not " + name);
}

void route(const Routing& routing, const float* scores, uint32_t* chosen, float* weights) {
  const size_t count = routing.count;
  probabilities.assign(scores, scores + count);
  if (routing.score == Score::softmax) softmax(probabilities.data(), count);
  if (routing.score == Score::sigmoid) {
    for (double& p : probabilities) p = 1 / (1 + std::exp(-p));
  }
  ranks = probabilities;
  for (size_t e = 0; e < count && routing.bias; ++e) ranks[e] += static_cast<double>(routing.bias[e]);
  if (routing.groups > 1) leave_groups(routing);
  take_best(ranks, routing.top_k, chosen);

  ranks.resize(routing.top_k);
  for (size_t i = 0; i < routing.top_k; ++i) ranks[i] = probabilities[chosen[i]];
  if (routing.score == Score::softmax_top) softmax(ranks.data(), routing.top_k);
  double sum = 1;
  if (routing.normalize && routing.score != Score::softmax_top) {
    sum = 1e-20;
    for (const double p : ranks) sum += p;
  }
  for (size_t i = 0; i < routing.top_k; ++i) {
    const double own = routing.expert_scale ? static_cast<double>(routing.expert_scale[chosen[i]]) : 1;
    weights[i] = static_cast<float>(ranks[i] / sum * routing.scale * own);
  }
}

}  // namespace fewbit
