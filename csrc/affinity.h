// Which CPUs the threads of the pool keep to, and which NUMA nodes hold memory. Linux only: elsewhere nothing is bound.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fewbit {

// From now on worker i of the pool keeps to workers[i], and further workers to `others`; without workers, all do.
// Returns an error number, 0 if the system agreed to all of it.
int bind_threads(const std::vector<std::vector<int>>& workers, const std::vector<int>& others);

// A worker follows the last binding; `seen` is the number of the one that it followed before.
void follow_binding(int worker, uint64_t& seen);

// The thread of a call is worker 0 of what it starts. It keeps to that worker's CPUs, as far as they are its own, and
// has all of its own again at the end. Of several calls at once the first alone is bound, as workers serve one.
class BoundCaller {
 public:
  BoundCaller();
  BoundCaller(const BoundCaller&) = delete;
  BoundCaller& operator=(const BoundCaller&) = delete;
  ~BoundCaller();

 private:
  bool is_bound_ = false;
};

// Pages inside of `data` that are not there yet will come from these nodes in turn (`interleave`), or from the first of
// them while it has any. Returns an error number.
int place_memory(void* data, size_t size, const std::vector<int>& nodes, bool interleave);

}  // namespace fewbit
