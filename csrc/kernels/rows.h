// What a model does with single rows of activations, beside products: norms, rotary positions, gates.

inline float dot_floats(const float* a, const float* b, size_t k) {
  constexpr int L = Isa::L;
  typename Isa::f32 acc[4] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
  size_t i = 0;
  for (; i + 4 * L <= k; i += 4 * L) {
    for (int c = 0; c < 4; ++c) acc[c] = Isa::fma(Isa::loadu(a + i + c * L), Isa::loadu(b + i + c * L), acc[c]);
  }
  float rest = 0;
  for (; i < k; ++i) rest += a[i] * b[i];
  return Isa::sum(Isa::add(Isa::add(acc[0], acc[1]), Isa::add(acc[2], acc[3]))) + rest;
}

inline void norm_row(const float* x, size_t n, const float* weight, float eps, float* out) {
  const float mean = dot_floats(x, x, n) / static_cast<float>(n);
  const float by = 1 / __builtin_sqrtf(mean + eps);
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * by * weight[i];
}

// Rotates pairs of the first values of each head by angles whose cosines and sines are given. A pair lies side by side,
// or (NeoX) in the two halves of what is rotated.
inline void rope_row(float* x, size_t heads, size_t dim, const float* cosines, const float* sines, size_t pairs,
                     bool neox) {
  for (size_t h = 0; h < heads; ++h, x += dim) {
    if (neox) {
      for (size_t i = 0; i < pairs; ++i) {
        const float a = x[i], b = x[i + pairs];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + pairs] = a * sines[i] + b * cosines[i];
      }
    } else {
      for (size_t i = 0; i < pairs; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = a * sines[i] + b * cosines[i];
      }
    }
  }
}

// out *= x * sigmoid(slope of x), some values at a time.
template <class Slope>
FEWBIT_INLINE void gate_by(const float* x, size_t n, float* out, Slope slope) {
  constexpr size_t some = 64;
  alignas(64) float e[some], s[some];
  for (size_t at = 0; at < n; at += some) {
    const size_t count = n - at < some ? n - at : some;
    for (size_t i = 0; i < count; ++i) s[i] = slope(x[at + i]);
    for (size_t i = count; i < some; ++i) s[i] = 0;
    for (size_t i = 0; i < some; ++i) e[i] = -__builtin_fabsf(s[i]);
    for (size_t i = 0; i < some; i += Isa::L) Isa::storef(e + i, Isa::exp(Isa::loadu(e + i)));
    for (size_t i = 0; i < count; ++i) out[at + i] *= x[at + i] * ((s[i] < 0 ? e[i] : 1.0f) / (1.0f + e[i]));
  }
}

// out *= gate(x).
inline void gate_row(Gate kind, const float* x, size_t n, float* out) {
  switch (kind) {
    case Gate::silu: return gate_by(x, n, out, [](float v) { return v; });
    case Gate::gelu_tanh:  // (1 + tanh(a)) / 2 is the sigmoid of 2 a
      return gate_by(x, n, out, [](float v) { return 1.5957691216057308f * (v + 0.044715f * v * v * v); });
    case Gate::gelu:
      for (size_t i = 0; i < n; ++i) out[i] *= 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678118654752f));
      return;
    case Gate::relu:
      for (size_t i = 0; i < n; ++i) out[i] *= x[i] < 0 ? 0 : x[i];
      return;
  }
}
