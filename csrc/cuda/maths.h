// Activations, gates and the like of one value, in the float32 maths of the GPU without its fast approximations.
#pragma once
#include "device.h"

namespace fewbit {

enum class Maths {
  none,
  silu,
  gelu,
  gelu_tanh,
  relu,
  relu2,
  sigmoid,
  softcap,
  scale,
  at_least,
  at_most,
  add,
  swiglu_oai
};

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-magnitude(x)), below = 1.0f + e;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(below));  // of 1 to 2: right but for the last bit
  return (x < 0 ? e : 1.0f) * r;
}
__device__ __forceinline__ float softplus(float x) { return (x > 0 ? x : 0.0f) + log1pf(expf(-magnitude(x))); }

template <Maths M>
__device__ __forceinline__ float activated(float x) {
  if constexpr (M == Maths::none) return x;
  if constexpr (M == Maths::silu) return x * sigmoid(x);
  if constexpr (M == Maths::gelu) return 0.5f * x * erfcf(x * -0.707106781186547524f);
  if constexpr (M == Maths::gelu_tanh) return x * sigmoid(1.59576912160573071f * (x + 0.044715f * x * x * x));
  if constexpr (M == Maths::relu) return x > 0 || x != x ? x : 0.0f;  // NaN stays
  if constexpr (M == Maths::relu2) return x > 0 || x != x ? x * x : 0.0f;
  if constexpr (M == Maths::sigmoid) return sigmoid(x);
}

template <Maths M>
__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (M == Maths::swiglu_oai) {
    gate = gate > 7.0f ? 7.0f : gate;
    up = (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
    return gate * sigmoid(1.702f * gate) * up;
  } else {
    return activated<M>(gate) * up;
  }
}

}  // namespace fewbit
