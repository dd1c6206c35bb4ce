// The SIGBUS handler that keeps a truncated file from ending the process, and its table of memory maps.
#include "map_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>

namespace fewbit {
namespace {

constexpr size_t kMaxMaps = 4096;

struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};  // begin == 0: free
  std::atomic<bool> failed{false};
};

Slot slots[kMaxMaps];
std::atomic<size_t> used_slots{0};  // all slots in use are before it
std::mutex guarding;                // of registration; the handler takes no lock
struct sigaction previous;          // whoever handled SIGBUS before
bool is_installed = false;
uintptr_t page_size = 4096;

// Zeros from the page of an address to the end of its map. A file that was truncated has none of these pages.
bool replace_pages(Slot& slot, uintptr_t address) {
  const uintptr_t begin = slot.begin.load(), end = slot.end.load();
  if (begin == 0 || address < begin || address >= end || begin != slot.begin.load()) return false;
  slot.failed.store(true);
  const uintptr_t page = address / page_size * page_size;
  void* const at = reinterpret_cast<void*>(page);
  return mmap(at, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int saved = errno;
  const bool is_fault = info->si_code > 0;  // else another process sent the signal
  bool replaced = false;
  const size_t count = used_slots.load();
  for (size_t i = 0; is_fault && i < count && !replaced; ++i) {
    replaced = replace_pages(slots[i], reinterpret_cast<uintptr_t>(info->si_addr));
  }
  if (!replaced) {  // the instruction faults again, and the handler from before takes it
    sigaction(SIGBUS, &previous, nullptr);
    if (!is_fault) raise(SIGBUS);
  }
  errno = saved;
}

// Installs the handler, again if somebody installed another one since; that one is then not called.
void install() {
  struct sigaction current;
  if (sigaction(SIGBUS, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_bus_error) return;
  if (!is_installed) previous = current;
  is_installed = true;
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

size_t guard_map(const void* address, size_t size) {
  const std::scoped_lock lock(guarding);
  install();
  for (size_t i = 0; i < kMaxMaps; ++i) {
    if (slots[i].begin.load() != 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(address);
    slots[i].failed.store(false);
    slots[i].end.store((begin + size + page_size - 1) / page_size * page_size);
    slots[i].begin.store(begin);
    if (i >= used_slots.load()) used_slots.store(i + 1);
    return i;
  }
  throw std::runtime_error("too many memory maps: at most " + std::to_string(kMaxMaps) + " can be guarded");
}

bool map_failed(size_t number) { return number < kMaxMaps && slots[number].failed.load(); }

void unguard_map(size_t number) {
  const std::scoped_lock lock(guarding);
  if (number < kMaxMaps) slots[number].begin.store(0);
}

}  // namespace fewbit
