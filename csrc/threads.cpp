#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

namespace fewbit {
namespace {

thread_local bool inside = false;  // a task: what it calls runs where it is

struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};

struct Job {
  const Task* task;
  size_t items, grain;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error{};  // the first one; read when all have left

  void work() noexcept {
    try {
      for (;;) {
        const size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= items) return;
        (*task)(begin, std::min(begin + grain, items));
      }
    } catch (...) {
      next.store(items, std::memory_order_relaxed);
      if (!failed.exchange(true)) error = std::current_exception();
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

constexpr int kSpins = 2000;  // a few tens of microseconds, then sleep

// Helpers sleep until there is a job with a free seat. One that wakes late finds the job closed: nobody waits for it.
class Pool {
 public:
  void run(Job& job, int threads) {
    const std::lock_guard<std::mutex> turn(turn_);
    grow(threads - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      seats_ = threads - 1;
      round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
    }
    for (int i = 0; i < kSpins && busy_.load(std::memory_order_acquire) > 0; ++i) pause();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_.load(std::memory_order_acquire) == 0; });
  }

 private:
  void grow(int helpers) {
    for (; helpers_ < helpers; ++helpers_) {
      std::thread([this, round = round_.load()] { help(round); }).detach();
    }
  }
  void help(uint64_t seen) {
    inside = true;
    for (;;) {
      for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) pause();
      if (Job* job = take(seen)) {
        job->work();
        const std::lock_guard<std::mutex> lock(mutex_);
        if (busy_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
      }
    }
  }
  Job* take(uint64_t& seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
    seen = round_.load(std::memory_order_relaxed);
    if (!job_ || seats_ == 0) return nullptr;
    --seats_;
    busy_.fetch_add(1, std::memory_order_relaxed);
    return job_;
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0};  // helpers at work
  Job* job_ = nullptr;
  int seats_ = 0, helpers_ = 0;
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
  if (threads <= 1 || inside) {
    job.work();
  } else {
    const Inside here;
    pool().run(job, threads);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fewbit
