// Memory for kernels, kept from call to call.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

namespace fewbit {

inline std::atomic<size_t> workspace_bytes{0};  // of all workspaces of the process

// Memory that grows and is kept. It comes from the system and goes back to it: a heap would keep what was outgrown.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  Workspace& operator=(Workspace&&) = delete;
  ~Workspace() { release(); }
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
    if (bytes > capacity_) {
      release();
      void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (fresh == MAP_FAILED) throw std::bad_alloc();
      data_ = fresh;
      capacity_ = bytes;
      workspace_bytes += bytes;
    }
    return static_cast<T*>(data_);
  }
  size_t capacity() const { return capacity_; }
  void release() {
    if (data_) munmap(data_, capacity_);
    workspace_bytes -= capacity_;
    data_ = nullptr;
    capacity_ = 0;
  }

 private:
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

// One of those that a thread has for itself, as a thread_local: what all of them keep after a call is bounded.
class ThreadWorkspace : public Workspace {
 public:
  template <class T>
  T* get(size_t count) {
    if (!listed_) {
      next_ = std::exchange(first_, this);
      listed_ = true;
    }
    return Workspace::get<T>(count);
  }
  // After a call: what an unusually large one left goes back to the system.
  static void trim() {
    size_t kept = 0;
    for (const ThreadWorkspace* w = first_; w; w = w->next_) kept += w->capacity();
    if (kept <= kMostKept) return;
    for (ThreadWorkspace* w = first_; w; w = w->next_) w->release();
  }

 private:
  static constexpr size_t kMostKept = size_t{64} << 20;
  inline static constinit thread_local ThreadWorkspace* first_ = nullptr;  // of this thread
  ThreadWorkspace* next_ = nullptr;
  bool listed_ = false;
};

}  // namespace fewbit
