#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace fewbit {
namespace {

thread_local bool inside = false;

struct Job {
  const Task* task;
  size_t items, grain;
  std::atomic<size_t> next{0};

  void work() {
    for (;;) {
      const size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= items) return;
      (*task)(begin, std::min(begin + grain, items));
    }
  }
};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class Pool {
 public:
  void run(Job& job, int threads) {
    const std::lock_guard<std::mutex> turn(turn_);
    grow(threads - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      wanted_ = threads - 1;
      busy_.store(threads - 1, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work();
    while (busy_.load(std::memory_order_acquire) > 0) pause();
  }

 private:
  static constexpr int kSpins = 2000;  // a few tens of microseconds, then sleep

  void grow(int helpers) {
    while (static_cast<int>(helpers_.size()) < helpers) {
      const int number = static_cast<int>(helpers_.size());
      helpers_.emplace_back([this, number, round = round_.load()] { loop(number, round); });
      helpers_.back().detach();
    }
  }
  void loop(int number, uint64_t seen) {
    inside = true;
    for (;;) {
      for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) pause();
      Job* job = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
        seen = round_.load(std::memory_order_relaxed);
        if (number < wanted_) job = job_;
      }
      if (job) {
        job->work();
        busy_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0};
  Job* job_ = nullptr;
  int wanted_ = 0;
};

// Never destroyed: its threads may outlive static objects. A forked child has none of them and gets a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!current || owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return *current;
}

}  // namespace

void parallel(size_t items, size_t grain, int threads, const Task& task) {
  grain = std::max<size_t>(grain, 1);
  const size_t pieces = (items + grain - 1) / grain;
  threads = static_cast<int>(std::min<size_t>(static_cast<size_t>(std::clamp(threads, 1, kMaxThreads)), pieces));
  Job job{&task, items, grain};
  if (threads <= 1 || inside) return job.work();
  inside = true;
  pool().run(job, threads);
  inside = false;
}

}  // namespace fewbit
