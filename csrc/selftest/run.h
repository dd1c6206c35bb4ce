// One instruction set under test: what it is compared with, and what came of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch.h"
#include "selftest/guard.h"
#include "selftest/random.h"

namespace fewbit::selftest {

class Run {
 public:
  Run(const Target& target, const Target& scalar, bool full, uint64_t seed)
      : target(target), scalar(scalar), full(full), random(seed), seed_(seed) {}

  const Target &target, &scalar;
  const bool full;
  Random random;

  // Begins a check. Its random numbers do not depend on what was checked before.
  void begin(const char* check, const char* format);
  // Names the case that comes.
  void at(const char* text, ...) __attribute__((format(printf, 2, 3)));
  // Counts the case as passed, or prints `what` with its name.
  void expect(bool holds, const char* what, ...) __attribute__((format(printf, 3, 4)));

  size_t draws(size_t few, size_t many) const { return full ? many : few; }
  // One case in four is tried with three threads: where there are fewer cores they wait for each other for long.
  int threads() { return full || random.below(4) == 0 ? 3 : 1; }
  Edge edge() { return random.below(2) ? Edge::begin : Edge::end; }
  size_t passed() const { return passed_; }
  size_t failed() const { return failed_; }

 private:
  static constexpr size_t kShown = 20;
  uint64_t seed_;
  size_t passed_ = 0, failed_ = 0;
};

// Prints the case in which the process touched a guard page, met an instruction that is not there or gave up, and
// exits.
void report_faults();

// The instruction set in use, for as long as this lives.
class Using {
 public:
  explicit Using(const Target& target) : before_(current_target()) { use_target(target.name); }
  ~Using() { use_target(before_.name); }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  const Target& before_;
};

// All checks: of each format, and of what has none.
struct FormatCheck {
  const char* name;
  void (*run)(Run& run, size_t format);
};
struct PlainCheck {
  const char* name;
  void (*run)(Run& run);
};
void check_decode(Run& run, size_t format);
void check_encode(Run& run, size_t format);
void check_products(Run& run, size_t format);
void check_gated(Run& run, size_t format);
void check_backward(Run& run, size_t format);
void check_moves(Run& run, size_t format);
void check_kv_rows(Run& run, size_t format);
void check_attention(Run& run, size_t format);
void check_quantize(Run& run);
void check_norm(Run& run);
void check_rope(Run& run);
void check_gates(Run& run);
void check_weigh(Run& run);
void check_scale(Run& run);
void check_rotate(Run& run);
void check_sample(Run& run);
void check_chain(Run& run);
void check_low_rank(Run& run);
void check_conv(Run& run);
void check_delta_rule(Run& run);
void check_scan(Run& run);

}  // namespace fewbit::selftest
