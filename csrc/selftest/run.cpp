// Counts checks, and prints those that fail.
#include "selftest/run.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace fewbit::selftest {
namespace {

// Where we are, for those who cannot be told: signal handlers.
char check_text[160], case_text[320];
size_t passed_so_far, failed_so_far;

void print(const char* text) { [[maybe_unused]] const auto n = write(STDOUT_FILENO, text, std::strlen(text)); }

void on_fault(int signal, siginfo_t* info, void*) {
  char line[640];
  const char* what = signal == SIGILL    ? "an instruction that is not there"
                     : signal == SIGABRT ? "given up, as after a damaged heap"
                                         : "memory that is not ours";
  std::snprintf(line, sizeof line, "FAILED %s, %s: %s at %p\n%zu passed, %zu failed\n", check_text, case_text, what,
                info->si_addr, passed_so_far, failed_so_far + 1);
  print(line);
  _exit(1);
}

}  // namespace

void Run::begin(const char* check, const char* format) {
  std::snprintf(check_text, sizeof check_text, "%s %s%s%s (seed %llu)", target.name, check, *format ? " " : "", format,
                static_cast<unsigned long long>(seed_));
  std::snprintf(case_text, sizeof case_text, "at its start");
  random = Random(hash_of(format, hash_of(check, seed_)));
}

void Run::at(const char* text, ...) {
  va_list values;
  va_start(values, text);
  std::vsnprintf(case_text, sizeof case_text, text, values);
  va_end(values);
}

void Run::expect(bool holds, const char* what, ...) {
  passed_ += holds;
  failed_ += !holds;
  passed_so_far += holds;
  failed_so_far += !holds;
  if (holds || failed_ > kShown) return;
  char text[320];
  va_list values;
  va_start(values, what);
  std::vsnprintf(text, sizeof text, what, values);
  va_end(values);
  std::printf("FAILED %s, %s: %s\n", check_text, case_text, text);
  if (failed_ == kShown) std::printf("       further failures of %s are only counted\n", target.name);
  std::fflush(stdout);  // a fault may come next
}

void report_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
}

}  // namespace fewbit::selftest
