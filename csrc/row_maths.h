// What models do with single rows beside products, norms and rotary positions.
#pragma once
#include <string>

#include "dispatch.h"

namespace fewbit {

enum class Map { scale, softcap, shift, at_least, at_most, silu, gelu, gelu_tanh, relu, relu2, sigmoid };
enum class GateKind { silu, gelu, gelu_tanh, relu, sigmoid, none, swiglu_oai };

Map map_named(const std::string& name);
GateKind gate_kind_named(const std::string& name);

// out = map(x), with a number or a vector where the map takes one. `out` may be x.
void map_row(Map map, const float* x, size_t n, float by, const float* vector, float* out);
// out = kind(x) * up. `out` may be up.
void gate_row(GateKind kind, const float* x, const float* up, size_t n, float* out);
void layer_norm_row(const float* x, size_t n, const float* weight, const float* bias, float eps, float* out);

}  // namespace fewbit
