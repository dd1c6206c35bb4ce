// Which kernels run: one table of functions for each instruction set, the best available one in use.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "activation.h"
#include "formats/geometry.h"

namespace fewbit {

using Encode = void (*)(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out);

// What can be done with rows of one format on one instruction set. A null pointer: it cannot be done.
struct Kernels {
  const char* format;
  const char* path;  // how `dot` gets at the codes; for `fewbit doctor`
  Layout (*layout)(size_t k, size_t group);
  void (*decode)(const uint8_t* row, size_t k, const Layout& at, float* out);
  Encode encode;
  void (*dot)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
              size_t y_stride);
  void (*exact)(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                size_t y_stride, float* scratch);
};

// What the machine can do at most, measured: csrc/probe.h.
struct Probes {
  uint64_t (*read)(const uint8_t* p, size_t bytes);        // plain loads
  uint64_t (*read_ahead)(const uint8_t* p, size_t bytes);  // with software prefetch
  size_t (*int8)(size_t rounds, float* sink);              // multiply-adds in registers; returns how many
  size_t (*f32)(size_t rounds, float* sink);
};

struct Target {
  const char* name;
  bool (*available)();
  const Kernels* (*kernels)();  // in the order of FEWBIT_FORMATS
  void (*quantize_row)(const float* x, size_t k, Activation* out);
  Probes probes;
  const std::atomic<uint64_t>& products;  // calls of `dot` and `exact`
};

const std::vector<const Target*>& available_targets();  // best first
const Target& current_target();
void use_target(const std::string& name);  // throws std::invalid_argument if it is not available
const std::vector<std::string>& format_names();
// Whether integer dot products can be used for rows of this layout: groups are whole 32s, or one for the row.
bool has_dot(const Kernels& kernels, const Layout& at, size_t k);

}  // namespace fewbit
