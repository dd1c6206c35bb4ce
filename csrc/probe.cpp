// Limits of the machine: how fast memory is read, how fast registers are multiplied.
#include "probe.h"

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "dispatch.h"
#include "threads.h"

namespace fewbit {
namespace {

std::atomic<uint64_t> kept{0};  // results end here, so that no work is optimised away

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double probe_read(const uint8_t* data, size_t bytes, int threads, bool prefetch) {
  const Probes& probes = current_target().products.probes;
  const size_t part = bytes / static_cast<size_t>(threads) / 4096 * 4096;
  if (part == 0) throw std::invalid_argument("too few bytes to measure: at least 4096 for each thread");
  const double started = now();
  parallel_for(static_cast<size_t>(threads), 1, threads, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t)
      kept += (prefetch ? probes.read_prefetched : probes.read)(data + t * part, part);
  });
  return (now() - started) * (static_cast<double>(bytes) / static_cast<double>(part * static_cast<size_t>(threads)));
}

double probe_rate(const std::string& kind, double seconds, int threads) {
  const Probes& probes = current_target().products.probes;
  if (kind != "int8" && kind != "bf16" && kind != "f32") {
    throw std::invalid_argument("a rate is of int8, bf16 or f32, not of " + kind);
  }
  const auto run = kind == "int8" ? probes.int8 : kind == "bf16" ? probes.bf16 : probes.f32;
  if (!run) return 0;
  std::atomic<size_t> done{0};
  const double started = now();
  parallel_for(static_cast<size_t>(threads), 1, threads, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float sink = 0;
      size_t count = 0;
      do count += run(20000, &sink);
      while (now() - started < seconds);
      kept += sink > 0;
      done += count;
    }
  });
  return static_cast<double>(done.load()) / (now() - started);
}

}  // namespace fewbit
