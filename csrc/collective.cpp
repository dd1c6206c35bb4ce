// How ranks of one process meet: each brings its rows, whoever comes last wakes the others.
#include "collective.h"

#include <algorithm>
#include <stdexcept>

namespace fewbit {

void ThreadCollective::meet() {
  std::unique_lock<std::mutex> lock(mutex_);
  const size_t meeting = meetings_;
  if (!aborted_ && ++here_ == ranks()) {
    here_ = 0;
    ++meetings_;
    all_here_.notify_all();
    return;
  }
  all_here_.wait(lock, [&] { return aborted_ || meetings_ != meeting; });
  if (meetings_ == meeting) throw std::runtime_error("another part of the model has failed");
}

void ThreadCollective::all_reduce(size_t rank, const float* part, size_t count, float* out) {
  parts_[rank] = part;
  outs_[rank] = out;
  meet();
  const size_t begin = count * rank / ranks(), end = count * (rank + 1) / ranks();
  for (size_t i = begin; i < end; ++i) {
    float sum = parts_[0][i];
    for (size_t r = 1; r < ranks(); ++r) sum += parts_[r][i];
    for (float* to : outs_) to[i] = sum;
  }
  meet();
}

void ThreadCollective::all_gather(size_t rank, const float* part, size_t rows, size_t width, size_t first, size_t total,
                                  float* out) {
  outs_[rank] = out;
  meet();
  for (float* to : outs_) {
    for (size_t row = 0; row < rows; ++row) std::copy_n(part + row * width, width, to + row * total + first);
  }
  meet();
}

void ThreadCollective::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  all_here_.notify_all();
}

void ThreadCollective::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = false;
  here_ = 0;
}

}  // namespace fewbit
