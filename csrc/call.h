// One call from Python.
#pragma once
#include "affinity.h"
#include "dispatch.h"
#include "threads.h"

namespace fewbit {

// A call has one instruction set from its beginning to its end, on all of its threads, whatever `use_isa` does
// meanwhile.
class CallScope {
 public:
  CallScope() : before_(target_of_call()) { set_target_of_call(&current_target()); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope() { set_target_of_call(before_); }

 private:
  const Target* before_;
  const BoundCaller bound_;
};

}  // namespace fewbit
