// One pool of threads for the process. Work is cut into pieces whose results do not depend on who does them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace fewbit {

struct Target;

constexpr int kMaxThreads = 256;

// The instruction set of the call that this thread works for, see call.h; null outside of one.
const Target* target_of_call();
void set_target_of_call(const Target* target);

uint64_t count_forks();  // between the first process and this one: locks that others held are nobody's now

// A reference to something callable; it owns nothing and allocates nothing.
class Task {
 public:
  using Call = void (*)(void* object, size_t begin, size_t end);

  Task() = default;
  Task(void* object, Call call) : object_(object), call_(call) {}
  template <class Fn>
  explicit Task(Fn& fn)
      : object_(std::addressof(fn)),
        call_([](void* object, size_t begin, size_t end) { (*static_cast<Fn*>(object))(begin, end); }) {}
  void operator()(size_t begin, size_t end) const { call_(object_, begin, end); }
  void* object() const { return object_; }
  Call call() const { return call_; }

 private:
  void* object_ = nullptr;
  Call call_ = nullptr;
};

// Calls task(begin, end) for pieces of at most `grain` that cover 0..items, on up to `threads` threads, the caller's
// among them. Calls from several threads wait for each other; a call from inside a task runs where it is. Where the
// system gives fewer threads, those do the work; those that had none for two seconds end.
void parallel(size_t items, size_t grain, int threads, const Task& task);

template <class Fn>
void parallel_for(size_t items, size_t grain, int threads, Fn&& fn) {
  const Task task(fn);
  parallel(items, grain, threads, task);
}

}  // namespace fewbit
