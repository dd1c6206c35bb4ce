// Binding of threads by sched_setaffinity, and of memory by mbind; both as plain system calls.
#include "affinity.h"

#include <atomic>
#include <cerrno>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fewbit {

#if defined(__linux__)
namespace {

using BitSet = std::vector<unsigned long>;
constexpr size_t kWordBits = 8 * sizeof(unsigned long);
constexpr unsigned long kPreferred = 1, kInterleave = 3;  // modes of mbind

BitSet bits_of(const std::vector<int>& numbers) {
  BitSet out;
  for (const int number : numbers) {
    const auto bit = static_cast<size_t>(number);
    if (out.size() <= bit / kWordBits) out.resize(bit / kWordBits + 1);
    out[bit / kWordBits] |= 1ul << bit % kWordBits;
  }
  return out;
}

int set_cpus(const BitSet& cpus) {
  return syscall(SYS_sched_setaffinity, 0, cpus.size() * sizeof(unsigned long), cpus.data()) < 0 ? errno : 0;
}

int get_cpus(BitSet& cpus) {
  for (cpus.resize(16);; cpus.resize(2 * cpus.size())) {  // EINVAL: the system knows more CPUs
    const long bytes = syscall(SYS_sched_getaffinity, 0, cpus.size() * sizeof(unsigned long), cpus.data());
    if (bytes >= 0) return cpus.resize(static_cast<size_t>(bytes) / sizeof(unsigned long)), 0;
    if (errno != EINVAL || cpus.size() > 1 << 16) return errno;
  }
}

struct Binding {
  uint64_t number;
  std::vector<BitSet> workers;
  BitSet others;
  const Binding* before;  // threads may still be reading it

  const BitSet& cpus_of(size_t worker) const { return worker < workers.size() ? workers[worker] : others; }
};

std::atomic<const Binding*> current{nullptr};
std::atomic<bool> has_bound_caller{false};
thread_local BitSet cpus_before, cpus_bound;  // of a caller

// A forked child has none of the calls that were under way.
[[maybe_unused]] const int on_fork = pthread_atfork(nullptr, nullptr, [] { has_bound_caller.store(false); });

// Whether the system lets a thread run on each of these sets.
int try_cpus(const Binding& binding) {
  BitSet before;
  if (const int error = get_cpus(before)) return error;
  int error = set_cpus(binding.others);
  for (size_t i = 0; i < binding.workers.size() && !error; ++i) error = set_cpus(binding.workers[i]);
  const int restored = set_cpus(before);
  return error ? error : restored;
}

}  // namespace

int bind_threads(const std::vector<std::vector<int>>& workers, const std::vector<int>& others) {
  auto* fresh = new Binding{1, {}, bits_of(others), current.load()};
  for (const std::vector<int>& cpus : workers) fresh->workers.push_back(bits_of(cpus));
  if (const int error = try_cpus(*fresh)) return delete fresh, error;
  do fresh->number = fresh->before ? fresh->before->number + 1 : 1;
  while (!current.compare_exchange_weak(fresh->before, fresh));
  return 0;
}

void follow_binding(int worker, uint64_t& seen) {
  const Binding* binding = current.load(std::memory_order_acquire);
  if (!binding || binding->number == seen) return;
  seen = binding->number;
  set_cpus(binding->cpus_of(static_cast<size_t>(worker)));  // what it keeps to was tried before
}

BoundCaller::BoundCaller() {
  const Binding* binding = current.load(std::memory_order_acquire);
  if (!binding || binding->workers.empty() || has_bound_caller.exchange(true)) return;
  is_bound_ = !get_cpus(cpus_before);
  cpus_bound = binding->workers[0];
  unsigned long any = 0;
  for (size_t i = 0; i < cpus_bound.size(); ++i) any |= cpus_bound[i] &= i < cpus_before.size() ? cpus_before[i] : 0;
  is_bound_ = is_bound_ && any && !set_cpus(cpus_bound);
  if (!is_bound_) has_bound_caller.store(false);
}

BoundCaller::~BoundCaller() {
  if (!is_bound_) return;
  set_cpus(cpus_before);
  has_bound_caller.store(false);
}

int place_memory(void* data, size_t size, const std::vector<int>& nodes, bool interleave) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + page - 1) / page * page, end = (begin + size) / page * page;
  if (first >= end) return 0;
  const BitSet mask = bits_of(nodes);
  const unsigned long mode = interleave ? kInterleave : kPreferred;
  const long done = syscall(SYS_mbind, first, end - first, mode, mask.data(), mask.size() * kWordBits + 1, 0);
  return done < 0 ? errno : 0;
}

#else

int bind_threads(const std::vector<std::vector<int>>&, const std::vector<int>&) { return ENOSYS; }
void follow_binding(int, uint64_t&) {}
BoundCaller::BoundCaller() = default;
BoundCaller::~BoundCaller() = default;
int place_memory(void*, size_t, const std::vector<int>&, bool) { return ENOSYS; }

#endif

}  // namespace fewbit
