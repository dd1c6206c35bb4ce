// A lock for what a forked child goes on to use.
#pragma once
#include <memory>
#include <mutex>

#include "threads.h"

namespace fewbit {

// It is open in a forked child: whoever held it is not there. Asked for with the GIL, waited for without.
class ForkedLock {
 public:
  std::mutex& get() {
    if (forks_ != count_forks()) {
      static_cast<void>(mutex_.release());  // destroying a locked one is not allowed
      mutex_ = std::make_unique<std::mutex>();
      forks_ = count_forks();
    }
    return *mutex_;
  }

 private:
  uint64_t forks_ = count_forks();
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
};

}  // namespace fewbit
