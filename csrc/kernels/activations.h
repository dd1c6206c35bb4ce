// Activations in 8 bits: 256 values with a scale for every 32, and the sums that zero points and offsets need. The same
// for every weight format, so that they are made once and shared.

// The runs of 16 once more, in the order of `runs`.
inline void copy_across(Activation& out) {
  for (int run = 0; run < 16; ++run) std::memcpy(out.across + run % 4 * 64 + run / 4 * 16, out.q + run * 16, 16);
}

// Four at a time in other orders: lane g of vector c holds dword c of group g; and for groups of 32, lanes 2g and 2g +
// 1 hold dwords 2c and 2c + 1.
inline void copy_turned(Activation& out) {
  for (int d = 0; d < 64; ++d) {
    std::memcpy(out.turned[0] + (d % 4 * 16 + d / 4) * 4, out.q + 4 * d, 4);
    std::memcpy(out.turned[1] + (d % 8 / 2 * 16 + d / 8 * 2 + d % 2) * 4, out.q + 4 * d, 4);
  }
}

// The scale of 32 values and what they are multiplied by. A value that is not finite spoils the scale; where the
// inverse would overflow, all are zero.
struct Step {
  float d, inverse;
};
FEWBIT_INLINE Step step_of(uint32_t top) {  // the bits of the largest magnitude
  const float max = bits_f32(top);
  if (top >= 0x7f800000u) return {bits_f32(0x7fc00000u), 0};
  if (max < 0x1p-100f) return {0, 0};
  return {max / 127.0f, 127.0f / max};
}

inline void quantize_span(const float* x, Activation& out) {
  alignas(64) int sums[16];
  for (int b = 0; b < 8; ++b) {
    const float* v = x + 32 * b;
    const Step step = step_of(Isa::largest_of_32(v));
    for (int h = 0; h < 2; ++h) {
      sums[2 * b + h] = Isa::quantize_16(v + 16 * h, step.inverse, out.q + 32 * b + 16 * h);
      out.d16[2 * b + h] = step.d;
    }
    out.d32[b] = step.d;
  }
  for (int b = 0; b < 8; ++b) {
    const float whole = out.d32[b] * static_cast<float>(sums[2 * b] + sums[2 * b + 1]);
    out.s32[b] = whole;
    out.pair32[2 * b] = out.pair32[2 * b + 1] = whole;
  }
  for (int h = 0; h < 16; ++h) out.s16[h] = out.d16[h] * static_cast<float>(sums[h]);
  copy_across(out);
  copy_turned(out);
}

inline void quantize_row(const float* x, size_t k, Activation* out) {
  const size_t whole = k / kSpan, rest = k % kSpan;
  for (size_t i = 0; i < whole; ++i) quantize_span(x + i * kSpan, out[i]);
  if (rest) {
    alignas(64) float t[kSpan] = {};
    std::memcpy(t, x + whole * kSpan, rest * sizeof(float));
    quantize_span(t, out[whole]);
  }
}
