// Activations in 8 bits: 256 values with a scale for every 32, and the sums that zero points and offsets need. The same
// for every weight format, so that they are made once and shared.

// Where each dword of the other orders comes from: see activation.h.
constexpr std::array<int, 64> strided_order = [] {
  std::array<int, 64> out{};
  for (int d = 0; d < 64; ++d) out[(d / 4 % 4 * 4 + d / 16) * 4 + d % 4] = d;
  return out;
}();
constexpr std::array<int, 64> transposed_order = [] {
  std::array<int, 64> out{};
  for (int d = 0; d < 64; ++d) out[d] = 4 * transposed_group(d % 16) + transposed_four(d / 16, d % 16);
  return out;
}();
constexpr std::array<int, 64> grid_order = [] {
  std::array<int, 64> out{};
  for (int d = 0; d < 64; ++d) out[d] = d % 16 / 2 * 8 + d / 16 * 2 + d % 2;
  return out;
}();

template <std::array<int, 64> at, class A>
FEWBIT_INLINE void reorder(const A& x, int8_t* out) {
  if constexpr (Isa::can_reduce) {
    Own<A>::type::template reorder<at>(x.q, out);
  } else {
    for (int d = 0; d < 64; ++d) std::memcpy(out + 4 * d, x.q + 4 * at[d], 4);
  }
}

// The scale of 32 values and what they are multiplied by. A value that is not finite spoils the scale; where the
// inverse would overflow, all are zero.
FEWBIT_INLINE void steps(const uint32_t* top, float* d, float* inverse) {  // top: the bits of the largest magnitudes
  for (int b = 0; b < 8; ++b) {
    const float max = bits_f32(top[b]), bad = bits_f32(0x7fc00000u);
    const bool finite = top[b] < 0x7f800000u, some = max >= 0x1p-100f;
    d[b] = finite ? (some ? max / 127.0f : 0) : bad;
    inverse[b] = finite && some ? 127.0f / max : 0;
  }
}

// `orders`: the same codes in other orders too.
template <bool orders, class A>
FEWBIT_INLINE void quantize_k_block(const float* x, A& out) {
  using I = typename Own<A>::type;
  alignas(64) int sums[16];
  alignas(64) uint32_t top[8];
  alignas(64) float inverse[8];
  if constexpr (Isa::can_reduce) {
    I::largest(x, top);
  } else {
    for (int b = 0; b < 8; ++b) top[b] = I::largest_of_32(x + 32 * b);
  }
  steps(top, out.d32, inverse);
  for (int h = 0; h < 16; ++h) {
    if constexpr (Isa::can_reduce)
      I::quantize_16(x + 16 * h, inverse[h / 2], out.q + 16 * h);
    else
      sums[h] = I::quantize_16(x + 16 * h, inverse[h / 2], out.q + 16 * h);
  }
  if constexpr (Isa::can_reduce) I::sums(out.q, sums);
  for (int b = 0; b < 8; ++b) {
    out.s32[b] = out.d32[b] * static_cast<float>(sums[2 * b] + sums[2 * b + 1]);
    out.pair32[2 * b] = out.pair32[2 * b + 1] = out.s32[b];
    out.d16[2 * b] = out.d16[2 * b + 1] = out.d32[b];
  }
  for (int h = 0; h < 16; ++h) {
    out.s16[h] = out.d16[h] * static_cast<float>(sums[h]);
    out.sums[h] = static_cast<int16_t>(sums[h]);
  }
  if constexpr (!orders) return;
  for (int l = 0; l < 16; ++l) {
    out.d_transposed[l] = out.d16[transposed_group(l)];
    out.s_transposed[l] = out.s16[transposed_group(l)];
  }
  reorder<strided_order>(out, out.strided);
  reorder<transposed_order>(out, out.transposed);
  reorder<grid_order>(out, out.grid);
}

inline void quantize_row(const float* x, size_t k, Activation* out) {
  const size_t whole = k / kBlockK, rest = k % kBlockK;
  for (size_t i = 0; i < whole; ++i) quantize_k_block<true>(x + i * kBlockK, out[i]);
  if (rest) {
    alignas(64) float t[kBlockK] = {};
    std::memcpy(t, x + whole * kBlockK, rest * sizeof(float));
    quantize_k_block<true>(t, out[whole]);
  }
}
