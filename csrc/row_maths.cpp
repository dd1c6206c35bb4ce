// Rows, value by value. What has an exponential goes through the gates of the target, in pieces.
#include "row_maths.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <stdexcept>

namespace fewbit {
namespace {

constexpr size_t kPiece = 256;                // values
constexpr float kLeast = 1e-6f;               // below it sigmoid is a half
constexpr float kLimit = 7, kSlope = 1.702f;  // of swiglu_oai

template <class Kind>
Kind named(const char* const* names, size_t count, const std::string& name, const char* what) {
  for (size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<Kind>(i);
  }
  throw std::invalid_argument(std::string("there is no ") + what + " " + name);
}

void gate(Gate kind, const float* x, size_t n, float* out) { current_target().rows.gate(kind, x, n, out); }

// sigmoid(x) = silu(x) / x
void sigmoid(const float* x, size_t n, float* out) {
  const auto small = [&](size_t i) { return std::fabs(x[i]) < kLeast; };
  for (size_t i = 0; i < n; ++i) out[i] = small(i) ? 0.0f : 1 / x[i];
  gate(Gate::silu, x, n, out);
  for (size_t i = 0; i < n; ++i) out[i] = small(i) ? 0.5f : out[i];
}

void swiglu_oai(const float* x, const float* up, size_t n, float* out) {
  float steep[kPiece];
  for (size_t i = 0; i < n; ++i) {
    steep[i] = kSlope * std::min(x[i], kLimit);
    out[i] = (std::clamp(up[i], -kLimit, kLimit) + 1) / kSlope;
  }
  gate(Gate::silu, steep, n, out);
}

void map_piece(Map map, const float* x, size_t n, float by, const float* vector, float* out) {
  float copy[kPiece];
  switch (map) {
    case Map::scale:
      for (size_t i = 0; i < n; ++i) out[i] = by * x[i];
      return;
    case Map::softcap:
      for (size_t i = 0; i < n; ++i) out[i] = by * std::tanh(x[i] / by);
      return;
    case Map::shift:
      for (size_t i = 0; i < n; ++i) out[i] = x[i] + vector[i];
      return;
    case Map::at_least:  // NaN stays
      for (size_t i = 0; i < n; ++i) out[i] = x[i] < by ? by : x[i];
      return;
    case Map::at_most:
      for (size_t i = 0; i < n; ++i) out[i] = x[i] > by ? by : x[i];
      return;
    case Map::relu2:
      for (size_t i = 0; i < n; ++i) out[i] = x[i] > 0 ? x[i] * x[i] : 0;
      return;
    case Map::sigmoid: sigmoid(x, n, copy); break;
    default:
      std::fill_n(copy, n, 1.0f);
      gate(static_cast<Gate>(static_cast<size_t>(map) - static_cast<size_t>(Map::silu)), x, n, copy);
  }
  std::copy_n(copy, n, out);
}

void gate_piece(GateKind kind, const float* x, const float* up, size_t n, float* out) {
  float copy[kPiece];
  switch (kind) {
    case GateKind::none:
      for (size_t i = 0; i < n; ++i) out[i] = x[i] * up[i];
      return;
    case GateKind::sigmoid:
      sigmoid(x, n, copy);
      for (size_t i = 0; i < n; ++i) out[i] = copy[i] * up[i];
      return;
    case GateKind::swiglu_oai: swiglu_oai(x, up, n, copy); break;
    default: std::copy_n(up, n, copy); gate(static_cast<Gate>(kind), x, n, copy);
  }
  std::copy_n(copy, n, out);
}

}  // namespace

Map map_named(const std::string& name) {
  static const char* const names[] = {"scale", "softcap",   "shift", "at_least", "at_most", "silu",
                                      "gelu",  "gelu_tanh", "relu",  "relu2",    "sigmoid"};
  return named<Map>(names, std::size(names), name, "map");
}

GateKind gate_kind_named(const std::string& name) {
  static const char* const names[] = {"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "none", "swiglu_oai"};
  return named<GateKind>(names, std::size(names), name, "gate");
}

void map_row(Map map, const float* x, size_t n, float by, const float* vector, float* out) {
  for (size_t i = 0; i < n; i += kPiece) {
    map_piece(map, x + i, std::min(kPiece, n - i), by, vector ? vector + i : nullptr, out + i);
  }
}

void gate_row(GateKind kind, const float* x, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; i += kPiece) gate_piece(kind, x + i, up + i, std::min(kPiece, n - i), out + i);
}

// In double precision, four sums at a time.
void layer_norm_row(const float* x, size_t n, const float* weight, const float* bias, float eps, float* out) {
  const auto sum = [&](auto&& value) {
    std::array<double, 4> sums{};
    for (size_t i = 0; i < n; ++i) sums[i % 4] += value(static_cast<double>(x[i]));
    return sums[0] + sums[1] + sums[2] + sums[3];
  };
  const double count = static_cast<double>(n), mean = sum([](double v) { return v; }) / count;
  const double variance = sum([&](double v) { return (v - mean) * (v - mean); }) / count;
  const auto by = static_cast<float>(1 / std::sqrt(variance + static_cast<double>(eps)));
  const auto middle = static_cast<float>(mean);
  for (size_t i = 0; i < n; ++i) out[i] = (x[i] - middle) * by * weight[i] + (bias ? bias[i] : 0);
}

}  // namespace fewbit
