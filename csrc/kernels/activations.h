// Activations in 8 bits: 256 values with a scale for every 32, and the sums that zero points and offsets need. The same
// for every weight format, so that they are made once and shared.

inline void quantize_span(const float* x, Activation& out) {
  for (int b = 0; b < 8; ++b) {
    const float* v = x + 32 * b;
    uint32_t top = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t a = f32_bits(v[i]) & 0x7fffffffu;
      top = a > top ? a : top;
    }
    float max = bits_f32(top);
    const bool finite = top < 0x7f800000u;
    const bool tiny = max < 0x1p-100f;  // would overflow the inverse
    const float inverse = finite && !tiny ? 127.0f / max : 0;
    const float d = !finite ? bits_f32(0x7fc00000u) : tiny ? 0 : max / 127.0f;
    int sums[2] = {0, 0};
    int8_t* q = out.q + 32 * b;
    for (int h = 0; h < 2; ++h) {
      int sum = 0;
      for (int i = 16 * h; i < 16 * h + 16; ++i) {
        const float r = finite ? v[i] * inverse + 12582912.0f : 12582912.0f;  // rounds to nearest even
        const int n = static_cast<int>(f32_bits(r)) - 0x4b400000;
        q[i] = static_cast<int8_t>(n);
        sum += n;
      }
      sums[h] = sum;
    }
    const float whole = d * static_cast<float>(sums[0] + sums[1]);
    out.d32[b] = d;
    out.s32[b] = whole;
    for (int h = 0; h < 2; ++h) {
      out.d16[2 * b + h] = d;
      out.pair32[2 * b + h] = whole;
      out.s16[2 * b + h] = d * static_cast<float>(sums[h]);
    }
  }
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
