// The pool of threads: woken once a step, barriers inside, work stealing at the end of a product.
#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "affinity.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local bool inside = false;  // a task: what it calls runs where it is
constinit thread_local const Target* target = nullptr;

struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};

// Pieces of a job, and those that a thread did: numbers with that of the job before them, so that what is left of an
// older one can be told from what is new.
constexpr int kPieceBits = 20;
constexpr uint64_t kMostPieces = uint64_t{1} << kPieceBits;

uint64_t stamped(uint64_t round, uint64_t number) { return round << kPieceBits | number; }

struct Job {
  uint64_t round;
  Task task;
  size_t items, grain;
  int threads;
  const Target* target;

  size_t pieces() const { return (items + grain - 1) / grain; }
  size_t first_of(int worker) const { return pieces() * static_cast<size_t>(worker) / static_cast<size_t>(threads); }
  void run(size_t piece) const { task(piece * grain, std::min((piece + 1) * grain, items)); }
};

// Each thread has a part of the pieces of its own, so that what one reads lies together and what it prefetches
// is used by itself. Who is done steals from the others. A part is its owner's until then, and begins with whoever
// takes its first piece: nobody waits for anybody else's memory.
struct alignas(64) Part {
  std::atomic<uint64_t> next{0}, done{0};

  // Takes a piece of [first, last); kMostPieces if there is none.
  size_t take(uint64_t round, size_t first, size_t last) {
    uint64_t now = next.load(std::memory_order_acquire);
    while (now >> kPieceBits <= round) {
      const size_t piece = now >> kPieceBits == round ? now % kMostPieces : first;
      if (piece >= last) break;
      if (next.compare_exchange_weak(now, stamped(round, piece + 1), std::memory_order_acq_rel)) return piece;
    }
    return kMostPieces;
  }
  size_t done_of(uint64_t round) const {
    const uint64_t now = done.load(std::memory_order_acquire);
    return now >> kPieceBits == round ? now % kMostPieces : 0;
  }
};

// Where a worker is told what to do: one line of memory. It is read as a whole or not at all.
class alignas(64) Mailbox {
 public:
  void write(const Job& job) {
    round_.store(kOpen, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    object_.store(job.task.object(), std::memory_order_relaxed);
    call_.store(job.task.call(), std::memory_order_relaxed);
    items_.store(job.items, std::memory_order_relaxed);
    grain_.store(job.grain, std::memory_order_relaxed);
    threads_.store(job.threads, std::memory_order_relaxed);
    target_.store(job.target, std::memory_order_relaxed);
    round_.store(job.round, std::memory_order_release);
  }
  uint64_t round() const { return round_.load(std::memory_order_acquire); }
  bool is_new(uint64_t seen) const {
    const uint64_t now = round_.load(std::memory_order_acquire);
    return now != seen && now != kOpen;
  }
  // False if another was written meanwhile: it is the one to read.
  bool read(Job& job) const {
    const uint64_t round = round_.load(std::memory_order_acquire);
    const Task task(object_.load(std::memory_order_relaxed), call_.load(std::memory_order_relaxed));
    job = {round,
           task,
           items_.load(std::memory_order_relaxed),
           grain_.load(std::memory_order_relaxed),
           threads_.load(std::memory_order_relaxed),
           target_.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    return round != kOpen && round_.load(std::memory_order_relaxed) == round;
  }

 private:
  static constexpr uint64_t kOpen = ~uint64_t{0};
  std::atomic<uint64_t> round_{0};
  std::atomic<void*> object_{};
  std::atomic<Task::Call> call_{};
  std::atomic<size_t> items_{}, grain_{};
  std::atomic<int> threads_{};
  std::atomic<const Target*> target_{};
};
static_assert(sizeof(Mailbox) == 64);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile(
      "isb");  // waits for what is under way; `yield` does nothing, and sched_yield gives a time slice away
#else
  std::this_thread::yield();
#endif
}

constexpr int kSpins = 2000;  // a few tens of microseconds, then sleep
constexpr std::chrono::seconds kIdle{2};

// Where one worker sleeps: a job wakes those that it needs, and no others. One that nobody needs leaves.
class alignas(64) Parking {
 public:
  // One that lies down right now may be missed: then it sleeps through this job, which goes on without it.
  void wake() {
    if (!asleep_.load(std::memory_order_relaxed)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_one();
  }
  // False: there was nothing to do for long.
  bool sleep(const Mailbox& mailbox, uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.store(true);
    const bool is_wanted = wake_.wait_for(lock, kIdle, [&] { return mailbox.is_new(seen); });
    asleep_.store(false);
    return is_wanted;
  }
  bool has_worker() const { return has_worker_.load(std::memory_order_acquire); }
  void arrive() { has_worker_.store(true, std::memory_order_release); }
  void leave() { has_worker_.store(false, std::memory_order_release); }  // the last that a worker does

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false}, has_worker_{false};
};

// Workers spin for a while and then sleep until there is a job. One that comes late finds nothing left to take, and
// nobody waits for it: a job is done when all of its pieces are. While workers are awake a job takes no lock.
class Pool {
 public:
  std::exception_ptr run(size_t items, size_t grain, int threads, const Task& task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hire(threads);
    const Job job{++round_, task, items, grain, threads, target};
    for (int i = 1; i < threads; ++i) mailboxes_[i].write(job);
    for (int i = 1; i < threads; ++i) parkings_[i].wake();
    work(job, 0);
    for (int i = 0; done(job) != job.pieces(); ++i) {
      if (i < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
    if (!failed_.load(std::memory_order_relaxed)) return nullptr;
    failed_.store(false, std::memory_order_relaxed);
    return std::exchange(error_, nullptr);
  }

 private:
  void work(const Job& job, int worker) noexcept {
    size_t count = 0;
    for (int i = 0; i < job.threads; ++i) {
      const int other = (worker + i) % job.threads;
      const size_t first = job.first_of(other), last = job.first_of(other + 1);
      for (size_t piece; (piece = parts_[other].take(job.round, first, last)) != kMostPieces;) {
        run(job, piece);
        parts_[worker].done.store(stamped(job.round, ++count), std::memory_order_release);
      }
    }
  }
  void run(const Job& job, size_t piece) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;  // what is left is only counted
    try {
      job.run(piece);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }
  size_t done(const Job& job) const {
    size_t sum = 0;
    for (int i = 0; i < job.threads; ++i) sum += parts_[i].done_of(job.round);
    return sum;
  }
  void hire(int threads) {
    for (int i = 1; i < threads; ++i) {
      if (!parkings_[i].has_worker() && !start(i)) return;
    }
  }
  // False: the system gives no more threads.
  bool start(int worker) {
    parkings_[worker].arrive();
    try {
      std::thread([this, worker, seen = mailboxes_[worker].round()] { serve(worker, seen); }).detach();
      return true;
    } catch (const std::system_error&) {
      parkings_[worker].leave();
      return false;
    }
  }
  void serve(int worker, uint64_t seen) {
    inside = true;
    const Mailbox& mailbox = mailboxes_[worker];
    uint64_t binding = 0;
    for (;;) {
      for (int i = 0; i < kSpins && !mailbox.is_new(seen); ++i) pause();
      if (!mailbox.is_new(seen)) {
        ThreadWorkspace::trim();
        if (!parkings_[worker].sleep(mailbox, seen)) break;
      }
      Job job;
      if (!mailbox.read(job)) continue;
      seen = job.round;
      target = job.target;
      follow_binding(worker, binding);
      work(job, worker);
    }
    parkings_[worker].leave();
  }

  std::mutex mutex_;
  uint64_t round_ = 0;
  std::exception_ptr error_{};  // the first one; read when all are done
  alignas(64) std::atomic<bool> failed_{false};
  Part parts_[kMaxThreads];
  Mailbox mailboxes_[kMaxThreads];
  Parking parkings_[kMaxThreads];
};

std::atomic<Pool*> current{nullptr};
std::atomic<uint64_t> forks{0};

// A forked child has none of the threads, and gets a pool of its own.
[[maybe_unused]] const int on_fork = pthread_atfork(nullptr, nullptr, [] {
  current.store(nullptr);
  ++forks;
});

// Never destroyed: its threads may outlive static objects. Made without a lock: who forks may leave one locked.
Pool& pool() {
  if (Pool* ready = current.load(std::memory_order_acquire)) return *ready;
  auto fresh = std::make_unique<Pool>();
  Pool* found = nullptr;
  return current.compare_exchange_strong(found, fresh.get()) ? *fresh.release() : *found;
}

}  // namespace

const Target* target_of_call() { return target; }
void set_target_of_call(const Target* now) { target = now; }
uint64_t count_forks() { return forks.load(); }

void parallel(size_t items, size_t grain, int threads, const Task& task) {
  grain = std::max<size_t>(grain, items / (kMostPieces - 2) + 1);
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
