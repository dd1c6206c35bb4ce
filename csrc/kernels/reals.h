// Plain floating-point numbers of up to 32 bits, as vectors.

template <class F>
constexpr bool is_plain() {
  if constexpr (F::kind == Kind::scalar)
    return F::real == Real::f32 || F::real == Real::f16 || F::real == Real::bf16 || F::real == Real::f8_e4m3;
  else
    return false;
}

// `count` vectors of numbers in a row. 8-bit floats become f16 in a loop over lanes, which compilers vectorize: no
// instruction set has to know them.
template <class F, int count>
FEWBIT_INLINE void read_reals(const uint8_t* p, typename Isa::f32* out) {
  using I = typename Own<F>::type;
  constexpr int L = Isa::L;
  if constexpr (F::real == Real::f8_e4m3 && Isa::registers > 0) {
    alignas(64) uint16_t parts[count * L];
    for (int i = 0; i < count * L; ++i) parts[i] = f8_e4m3_to_f16_part(p[i]);
    const auto* from = reinterpret_cast<const uint8_t*>(parts);
    for (int v = 0; v < count; ++v) {
      out[v] = Isa::mul(I::template reals_at<Real::f16>(from + 2 * v * L), Isa::splat(256));
    }
  } else {
    for (int v = 0; v < count; ++v) out[v] = I::template reals_at<F::real>(p + v * L * F::bytes);
  }
}
