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

// Each thread has a part of its own, so that what one reads lies together and what it asks for in advance is used by
// itself. Who is done helps the others.
struct alignas(64) Part {
  std::atomic<size_t> next{0};
  size_t end = 0;
};

struct Job {
  const Task* task;
  size_t grain;
  Part* parts;
  int count;
  std::atomic<bool> failed{false};
  std::exception_ptr error{};  // the first one; read when all have left

  void work(int seat) noexcept {
    try {
      for (int i = 0; i < count; ++i) drain(parts[(seat + i) % count]);
    } catch (...) {
      for (int i = 0; i < count; ++i) parts[i].next.store(parts[i].end, std::memory_order_relaxed);
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
  void drain(Part& part) {
    for (;;) {
      const size_t begin = part.next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= part.end) return;
      (*task)(begin, std::min(begin + grain, part.end));
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
  std::exception_ptr run(size_t items, size_t grain, int threads, const Task& task) {
    const std::lock_guard<std::mutex> turn(turn_);
    grow(threads - 1);
    const size_t pieces = (items + grain - 1) / grain, count = static_cast<size_t>(threads);
    for (size_t i = 0; i < count; ++i) {
      parts_[i].next.store(pieces * i / count * grain, std::memory_order_relaxed);
      parts_[i].end = std::min(pieces * (i + 1) / count * grain, items);
    }
    Job job{&task, grain, parts_, threads};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      seats_ = threads - 1;
      round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work(0);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
    }
    for (int i = 0; i < kSpins && busy_.load(std::memory_order_acquire) > 0; ++i) pause();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_.load(std::memory_order_acquire) == 0; });
    return job.error;
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
      int seat;
      if (Job* job = take(seen, seat)) {
        job->work(seat);
        const std::lock_guard<std::mutex> lock(mutex_);
        if (busy_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
      }
    }
  }
  Job* take(uint64_t& seen, int& seat) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
    seen = round_.load(std::memory_order_relaxed);
    if (!job_ || seats_ == 0) return nullptr;
    seat = seats_--;
    busy_.fetch_add(1, std::memory_order_relaxed);
    return job_;
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0};  // helpers at work
  Job* job_ = nullptr;
  int seats_ = 0, helpers_ = 0;
  Part parts_[kMaxThreads];
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
  if (threads <= 1 || inside) {
    for (size_t begin = 0; begin < items; begin += grain) task(begin, std::min(begin + grain, items));
    return;
  }
  const Inside here;
  if (const auto error = pool().run(items, grain, threads, task)) std::rethrow_exception(error);
}

}  // namespace fewbit
