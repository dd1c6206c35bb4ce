// Memory for kernels, kept from call to call.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace fewbit {

// Memory that grows and is kept, one for each thread and use. It comes from the system and goes back to it: a heap
// would keep what was outgrown.
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
    }
    return static_cast<T*>(data_);
  }

 private:
  void release() {
    if (data_) munmap(data_, capacity_);
    data_ = nullptr;
    capacity_ = 0;
  }
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace fewbit
