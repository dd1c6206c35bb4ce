#include "threads.h"

#include <pthread.h>

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
constexpr uint32_t kClosed = uint32_t{1} << 31;

// Helpers spin for a while and then sleep until there is a job. They enter it through a gate that counts them; one that
// comes late finds the gate closed, and nobody waits for it. While helpers are awake a job takes no lock.
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
    job_ = &job;
    gate_.fetch_and(~kClosed, std::memory_order_release);
    round_.fetch_add(1);
    if (asleep_.load() > 0) {  // one that lies down now sees the new round
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    job.work(0);
    gate_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (int i = 0; gate_.load(std::memory_order_acquire) != kClosed; ++i) {
      if (i < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
    return job.error;
  }

 private:
  void grow(int helpers) {
    for (; helpers_ < helpers; ++helpers_) {
      std::thread([this, seat = helpers_ + 1, round = round_.load()] { help(seat, round); }).detach();
    }
  }
  void help(int seat, uint64_t seen) {
    inside = true;
    for (;;) {
      for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) pause();
      if (round_.load(std::memory_order_acquire) == seen) sleep(seen);
      seen = round_.load(std::memory_order_acquire);
      const bool open = !(gate_.fetch_add(1, std::memory_order_acquire) & kClosed);
      if (open && seat < job_->count) job_->work(seat);
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }
  void sleep(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return round_.load() != seen; });
    asleep_.fetch_sub(1);
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  alignas(64) std::atomic<uint64_t> round_{0};
  alignas(64) std::atomic<uint32_t> gate_{kClosed};  // helpers inside
  alignas(64) std::atomic<int> asleep_{0};
  Job* job_ = nullptr;
  int helpers_ = 0;
  Part parts_[kMaxThreads];
};

std::atomic<Pool*> current{nullptr};

// Never destroyed: its threads may outlive static objects. A forked child has none of them and gets a pool of its own.
Pool& pool() {
  if (Pool* ready = current.load(std::memory_order_acquire)) return *ready;
  static std::mutex mutex;
  static std::once_flag once;
  const std::lock_guard<std::mutex> lock(mutex);
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); }); });
  if (!current.load()) current.store(new Pool);
  return *current.load();
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
