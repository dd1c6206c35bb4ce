// Memory for kernels, kept from call to call.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace fewbit {

// Memory that grows and is kept, one for each thread and use.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  Workspace& operator=(Workspace&&) = delete;
  ~Workspace() { std::free(data_); }
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
    if (bytes > capacity_) {
      void* fresh = std::aligned_alloc(4096, bytes);
      if (!fresh) throw std::bad_alloc();
      std::free(data_);
      data_ = fresh;
      capacity_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace fewbit
