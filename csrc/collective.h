// Executors of one process, each in a thread of its own, that share the work of a model: each brings rows, and all get
// the result.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

namespace fewbit {

// All ranks make the same calls in the same order. A sum adds parts in the order of ranks: every rank gets the same
// bits, beside any other rows.
class ThreadCollective {
 public:
  explicit ThreadCollective(size_t ranks) : parts_(ranks), outs_(ranks) {}
  size_t ranks() const { return parts_.size(); }
  // out = the sum of all parts, `count` values.
  void all_reduce(size_t rank, const float* part, size_t count, float* out);
  // Columns first, first + 1, ... of rows of `total` values, here and in the results of all others.
  void all_gather(size_t rank, const float* part, size_t rows, size_t width, size_t first, size_t total, float* out);
  // Whoever waits, or waits later, gets an error: a rank has failed, and will not come.
  void abort();
  // Once no rank is in a call.
  void reset();

 private:
  void meet();

  std::vector<const float*> parts_;
  std::vector<float*> outs_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  size_t here_ = 0, meetings_ = 0;
  bool aborted_ = false;
};

}  // namespace fewbit
