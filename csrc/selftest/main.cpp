// Checks every instruction set of this machine against the scalar one, without Python: for machines, real or emulated,
// that have none. `--help` tells the options.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "selftest/run.h"

using namespace fewbit;
using namespace fewbit::selftest;

namespace {

constexpr FormatCheck kFormatChecks[] = {
    {"decode", check_decode}, {"encode", check_encode},     {"moves", check_moves},     {"products", check_products},
    {"gated", check_gated},   {"backward", check_backward}, {"kv rows", check_kv_rows}, {"attention", check_attention},
};
constexpr PlainCheck kPlainChecks[] = {
    {"quantize", check_quantize},     {"norm", check_norm},     {"rope", check_rope},
    {"gates", check_gates},           {"weigh", check_weigh},   {"scale", check_scale},
    {"rotate", check_rotate},         {"sample", check_sample}, {"conv", check_conv},
    {"delta rule", check_delta_rule}, {"scan", check_scan},     {"chain", check_chain},
    {"low rank", check_low_rank},
};

constexpr const char* kHelp =
    "Usage: selftest [--list] [--best | --target NAME] [--format NAME] [--check NAME] [--quick | --full] [--seed N]\n"
    "  NAME      several are possible, with commas between them\n"
    "  --list    the instruction sets of this machine, and the formats\n"
    "  --best    the best instruction set alone\n"
    "  --quick   a sample of all shapes, for emulators; it is what is done unless told otherwise\n"
    "  --full    many more of them\n"
    "  --seed    other shapes and values\n";

struct Options {
  std::string target, format, check;
  bool full = false, list = false;
  uint64_t seed = 1;
};

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "%s\n%s", why.c_str(), kHelp);
  std::exit(2);
}

Options parse(int count, char** arguments) {
  Options out;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == count) refuse(name + " needs a value");
      return arguments[++i];
    };
    if (name == "--target")
      out.target = value();
    else if (name == "--format")
      out.format = value();
    else if (name == "--check")
      out.check = value();
    else if (name == "--seed")
      out.seed = std::strtoull(value().c_str(), nullptr, 10);
    else if (name == "--full" || name == "--quick")
      out.full = name == "--full";
    else if (name == "--best")
      out.target = available_targets().front()->name;
    else if (name == "--list")
      out.list = true;
    else if (name == "--help")
      std::exit(std::fputs(kHelp, stdout) < 0);
    else
      refuse("What is " + name + "?");
  }
  return out;
}

// A filter is one name or several with commas between them; empty: all.
bool selected(const std::string& filter, const std::string& name) {
  return filter.empty() || ("," + filter + ",").find("," + name + ",") != std::string::npos;
}

void list() {
  std::printf("instruction sets:");
  for (const Target* t : available_targets()) std::printf(" %s", t->name);
  std::printf("\nformats:");
  for (const std::string& name : format_names()) std::printf(" %s", name.c_str());
  std::printf("\nchecks:");
  for (const FormatCheck& check : kFormatChecks) std::printf(" '%s'", check.name);
  for (const PlainCheck& check : kPlainChecks) std::printf(" '%s'", check.name);
  std::printf("\n");
}

// Runs one check; returns how many cases of it passed, in words.
template <class Fn>
std::string counted(Run& run, const char* name, Fn&& check) {
  const size_t before = run.passed();
  check();
  const size_t more = run.passed() - before;
  return more ? " " + std::string(name) + " " + std::to_string(more) + "," : "";
}

void check_formats(Run& run, const Options& options, const FormatCheck& check) {
  for (size_t i = 0; i < format_names().size(); ++i) {
    const char* format = format_names()[i].c_str();
    if (!selected(options.format, format)) continue;
    run.begin(check.name, format);
    check.run(run, i);
  }
}

// Products really came from the kernels that were chosen, none from the scalar ones.
void check_counters(Run& run, uint64_t own_before, uint64_t scalar_before) {
  run.begin("counters", "");
  run.at("after all products");
  const bool is_scalar = &run.target == &run.scalar;
  run.expect(run.target.products.count > own_before, "%s multiplied nothing", run.target.name);
  run.expect(is_scalar || run.scalar.products.count == scalar_before, "scalar kernels multiplied in its place");
}

void check_target(Run& run, const Options& options) {
  const Using forced(run.target);
  const uint64_t own = run.target.products.count, scalar = run.scalar.products.count;
  std::string line = run.target.name + std::string(":");
  for (const FormatCheck& check : kFormatChecks) {
    if (selected(options.check, check.name))
      line += counted(run, check.name, [&] { check_formats(run, options, check); });
  }
  if (selected(options.check, "products")) check_counters(run, own, scalar);
  for (const PlainCheck& check : kPlainChecks) {
    if (!selected(options.check, check.name)) continue;
    run.begin(check.name, "");
    line += counted(run, check.name, [&] { check.run(run); });
  }
  std::printf("%s %zu failed\n", line.c_str(), run.failed());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  if (options.list) return list(), 0;
  report_faults();
  size_t passed = 0, failed = 0;
  for (const Target* target : available_targets()) {
    if (!selected(options.target, target->name)) continue;
    Run run(*target, *available_targets().back(), options.full, options.seed);
    check_target(run, options);
    passed += run.passed();
    failed += run.failed();
  }
  if (passed + failed == 0) refuse("Nothing was checked: --list tells the names");
  std::printf("%zu passed, %zu failed\n", passed, failed);
  return failed ? 1 : 0;
}
