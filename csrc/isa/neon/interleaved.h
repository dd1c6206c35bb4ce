// Interleaved rows, a lane for each of four: see kernels/interleaved.h.

struct SideBySide : Grids {
  static constexpr bool can_interleave = true;
  template <int shift, int bits, int dst>
  static FEWBIT_INLINE bytes take(bytes v) {
    return moved<shift, bits, dst>(v);
  }
  template <int byte, int shift, int dst>
  static FEWBIT_INLINE bytes take_bits(bytes v) {
    const bytes four = vqtbl1q_u8(v, in_dwords(byte, byte, byte, byte));
    const bytes bit = vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << shift));
    return vandq_u8(vtstq_u8(four, bit), vdupq_n_u8(1 << dst));
  }
  template <int shift, int bits, int dst, bool is_signed>
  static FEWBIT_INLINE bytes field(bytes v) {
    uint32x4_t u = vreinterpretq_u32_u8(v);
    constexpr int above = 32 - shift - bits, down = shift - dst;
    if constexpr (is_signed) {
      if constexpr (above > 0) u = vshlq_n_u32(u, above);
      return vreinterpretq_u8_s32(vshrq_n_s32(vreinterpretq_s32_u32(u), 32 - bits));
    } else {
      if constexpr (down > 0) u = vshrq_n_u32(u, down);
      if constexpr (down < 0) u = vshlq_n_u32(u, -down);
      constexpr bool alone = above == 0 && dst == 0;
      return vreinterpretq_u8_u32(alone ? u : vandq_u32(u, vdupq_n_u32(((1u << bits) - 1) << dst)));
    }
  }
  template <int zero>
  static FEWBIT_INLINE f32 less_to_floats(bytes v) {
    const int32x4_t n = vreinterpretq_s32_u8(v);
    return vcvtq_f32_s32(zero ? vsubq_s32(n, vdupq_n_s32(zero)) : n);
  }
  template <bool high>
  static FEWBIT_INLINE f32 halves_of(bytes v) {
    const uint32x4_t u = vreinterpretq_u32_u8(v);
    return vcvt_f32_f16(vreinterpret_f16_u16(high ? vshrn_n_u32(u, 16) : vmovn_u32(u)));
  }
  template <Real r>
  static FEWBIT_INLINE f32 byte_real(bytes v) {
    return r == Real::e8m0 ? e8m0(v) : half_ue4m3(vreinterpretq_u32_u8(v));
  }
  static FEWBIT_INLINE f32 e8m0(bytes e) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vqsubq_u32(vreinterpretq_u32_u8(e), vdupq_n_u32(1)), 23));
  }
  static FEWBIT_INLINE f32 as_floats(bytes v) { return vreinterpretq_f32_u8(v); }
  template <int shift>
  static FEWBIT_INLINE bytes joined(bytes a, bytes b) {
    const uint32x4_t above = vshlq_n_u32(vreinterpretq_u32_u8(b), 32 - shift);
    return vreinterpretq_u8_u32(vsriq_n_u32(above, vreinterpretq_u32_u8(a), shift));
  }
  template <int zero>
  static FEWBIT_INLINE bytes less(bytes v) {
    return zero ? vsubq_u8(v, vdupq_n_u8(zero)) : v;
  }

  // An index for shuffles: in every dword its bytes in another order.
  static FEWBIT_INLINE bytes in_dwords(int a, int b, int c, int d) {
    const uint32_t four = static_cast<uint32_t>(a | b << 8 | c << 16 | d << 24);
    const uint32x4_t index = {four, four + 0x04040404, four + 0x08080808, four + 0x0c0c0c0c};
    return vreinterpretq_u8_u32(index);
  }
};
