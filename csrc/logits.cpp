// Which logits can be among the largest, by a bound on what 8-bit activations lose of them.
#include "logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dispatch.h"
#include "passes.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr size_t kMostTops = 1024;  // more would leave too many rows to multiply again
constexpr double kRounding = 2e-5;  // of sums in f32, as a share of |w| |x|: 30 times what was seen
constexpr size_t kNormRows = 64;    // decoded together; a multiple of kInterleaved

thread_local ThreadWorkspace decoded, lower_bounds, group_tops, codes;

double squared(const float* x, size_t k) {
  double sum = 0;
  for (size_t i = 0; i < k; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// How far a logit of 8-bit activations can be from that of 16 bits, as a share of the norm of its row of weights.
double error_of(const float* x, size_t k, const Activation* q16) {
  double lost = 0;
  for (size_t i = 0; i < k; ++i) {
    const Activation& rest = q16[k_blocks_of(k) + i / kBlockK];
    const double value = static_cast<double>(rest.q[i % kBlockK]) * static_cast<double>(rest.d32[i % kBlockK / 32]);
    lost += value * value;
  }
  return std::sqrt(lost) + kRounding * std::sqrt(squared(x, k));
}

// A logit that at least `count` of 16 bits reach, given those of 8.
float least_of_top(const float* y, const float* norms, size_t n, float error, size_t count) {
  float *lower = lower_bounds.get<float>(n), *groups = group_tops.get<float>((n + kChunk - 1) / kChunk * kLanes);
  for (size_t i = 0; i < n; ++i) lower[i] = y[i] - norms[i] * error;
  current_target().rows.passes.scan(lower, n, groups);
  return reached_by(groups, (n + kChunk - 1) / kChunk, count);
}

// Sets of 16 rows of w whose logits can reach `least`.
void find_sets(const float* y, const float* norms, size_t n, float error, float least, std::vector<size_t>& out) {
  out.clear();
  for (size_t begin = 0; begin < n; begin += kInterleaved) {
    const size_t end = std::min(begin + kInterleaved, n);
    bool below = true;
    for (size_t i = begin; i < end; ++i) below &= y[i] + norms[i] * error < least;  // not so for NaN
    if (!below) out.push_back(begin / kInterleaved);
  }
}

void correct_row(const Matrix& w, const float* norms, const float* x, size_t count, float* y, int threads) {
  thread_local std::vector<size_t> sets;  // kept
  auto* q16 = codes.get<Activation>(2 * k_blocks_of(w.k));
  quantize_row(x, w.k, true, q16);
  const auto error = static_cast<float>(error_of(x, w.k, q16));
  const float least =
      std::isfinite(error) ? least_of_top(y, norms, w.n, error, count) : -std::numeric_limits<float>::infinity();
  find_sets(y, norms, w.n, error, least, sets);
  Inputs in{1, w.k, x};
  in.q16 = q16;
  multiply_sets(w, in, Activations::int16, sets, y, threads);
}

bool gains(const Matrix& w, const Inputs& in, const int32_t* tops) {
  const Path path = choose(*w.kernels, w.at, w.k, in.alone ? 1 : in.m, Activations::int8).path;
  if (path == Path::exact || in_bf16(path) || !choose(*w.kernels, w.at, w.k, 1, Activations::int16).twice) return false;
  return std::all_of(tops, tops + in.m, [](int32_t top) { return top > 0 && static_cast<size_t>(top) <= kMostTops; });
}

}  // namespace

void row_norms(const Matrix& w, float* out, int threads) {
  parallel_for((w.n + kNormRows - 1) / kNormRows, 1, threads, [&](size_t begin, size_t end) {
    for (size_t first = begin * kNormRows; first < std::min(end * kNormRows, w.n); first += kNormRows) {
      const size_t count = std::min(kNormRows, w.n - first);
      float* rows = decoded.get<float>(kNormRows * w.k);
      decode_rows(w, first, count, rows);
      for (size_t r = 0; r < count; ++r) out[first + r] = static_cast<float>(std::sqrt(squared(rows + r * w.k, w.k)));
    }
  });
}

bool multiply_largest(const Matrix& w, const float* norms, const Inputs& inputs, const int32_t* tops, float* out,
                      int threads) {
  if (!gains(w, inputs, tops)) return false;
  const Product product{w, out};
  multiply({&product, 1}, inputs, Activations::int8, threads);
  const float* x = inputs.norm.weight ? inputs.norm.out : inputs.x;
  for (size_t r = 0; r < inputs.m; ++r) {
    correct_row(w, norms, x + r * w.k, static_cast<size_t>(tops[r]), out + r * w.n, threads);
  }
  return true;
}

}  // namespace fewbit
