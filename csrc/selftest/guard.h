// Memory whose first or last byte lies beside a page that nobody may touch: who reads or writes past it is stopped by
// the system, and `Run` says in which case.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

namespace fewbit::selftest {

enum class Edge { end, begin };

inline const char* edge_name(Edge edge) { return edge == Edge::end ? "end" : "begin"; }

template <class T>
class Guarded {
 public:
  Guarded(size_t count, Edge edge) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = count * sizeof(T), room = (bytes + page - 1) / page * page;
    whole_ = room + 2 * page;
    void* all = mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    start_ = static_cast<uint8_t*>(all);
    first_ = start_ + page;
    last_ = first_ + room;
    if (room && mprotect(first_, room, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::fill(first_, last_, kFill);
    data_ = reinterpret_cast<T*>(edge == Edge::end ? last_ - bytes : first_);
  }
  Guarded(std::span<const T> from, Edge edge) : Guarded(from.size(), edge) {
    if (!from.empty()) std::memcpy(static_cast<void*>(data_), from.data(), from.size_bytes());
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(start_, whole_); }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_[i]; }
  std::span<T> all() const { return {data_, count_}; }
  operator std::span<const T>() const { return {data_, count_}; }
  // Whether nothing was written on the side where writing is possible.
  bool intact() const {
    const auto is_fill = [](uint8_t b) { return b == kFill; };
    const auto* begin = reinterpret_cast<const uint8_t*>(data_);
    return std::all_of(static_cast<const uint8_t*>(first_), begin, is_fill) &&
           std::all_of(begin + count_ * sizeof(T), static_cast<const uint8_t*>(last_), is_fill);
  }

 private:
  static constexpr uint8_t kFill = 0xa5;
  uint8_t *start_, *first_, *last_;
  size_t count_, whole_;
  T* data_;
};

}  // namespace fewbit::selftest
