// Dot products with four activations out of a lane: see kernels/by_lane.h.

struct ByLane : SideBySide {
  static constexpr bool dots_by_lane = true;
  static constexpr int panel_k_blocks = 8;    // unpacked at once: 32 KiB of codes
  static constexpr size_t least_panels = 16;  // columns from which unpacking once is worth it
  // How far weights are prefetched: past the panel, never less. None where whole lines are read in order.
  static constexpr size_t panel_prefetch = 4096;

  // By lane as it is written: gcc would copy lanes that are used twice to registers of their own.
  template <int i>
  static FEWBIT_INLINE f32 fma_lane(f32 sum, f32 a, f32 x) {
    __asm__("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(x), "i"(i));
    return sum;
  }
  // Sums times what lane i of `d` holds; `minus_start` takes back what they began with.
  template <int i>
  static FEWBIT_INLINE f32 scaled(ints sum, f32 d, const float* minus_start) {
    return fma_lane<i>(start_at(minus_start), vreinterpretq_f32_s32(sum), d);
  }
  static FEWBIT_INLINE f32 scaled(ints sum, f32 d, const float* minus_start) {
    return vfmaq_f32(start_at(minus_start), vreinterpretq_f32_s32(sum), d);
  }
  // Byte i of every dword, signed, less `zero`: a dot product with 1 at one place and 0 elsewhere widens it.
  template <int i, int zero>
  static FEWBIT_INLINE f32 byte_float(bytes v) {
    const bytes one = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    return from_start<zero>(dot_lane<i>(start(), v, one));
  }
  // Bytes i of all dwords, for i from 0 to 3. As halves their exponents are 8 too small, and subnormals stay what they
  // are; half of the value is wanted.
  template <Real r>
  static FEWBIT_INLINE void four_reals(bytes v, f32* out) {
    static_assert(r == Real::ue4m3);
    const bytes code = vqtbl1q_u8(v, bytes{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
    const bytes none = vceqq_u8(code, vdupq_n_u8(0x7f)), some = vbicq_u8(vandq_u8(code, vdupq_n_u8(0x7f)), none);
    const uint16x8_t low = vshll_n_u8(vget_low_u8(some), 7), high = vshll_high_n_u8(some, 7);
    const uint16x4_t four[4] = {vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)};
    for (int i = 0; i < 4; ++i) out[i] = vmulq_n_f32(halves(four[i]), 0x1p7f);
  }
  // `n` bits from each of bits `at` of a dword on, to its four bytes, at bit `dst` of each.
  template <std::array<int, 4> at, int n, int dst>
  static FEWBIT_INLINE bytes gathered(bytes v) {
    constexpr auto up = [](int i) { return uint32_t{static_cast<uint8_t>(dst - at[i] % 8)} << 8 * i; };
    const bytes four = vqtbl1q_u8(v, in_dwords(at[0] / 8, at[1] / 8, at[2] / 8, at[3] / 8));
    const int8x16_t by = vreinterpretq_s8_u32(vdupq_n_u32(up(0) | up(1) | up(2) | up(3)));
    return vandq_u8(vshlq_u8(four, by), vdupq_n_u8(((1 << n) - 1) << dst));
  }
  // Bytes 0 to count - 1 of every dword of `last`, the others of `first`.
  template <int count>
  static FEWBIT_INLINE bytes rotated_ends(bytes first, bytes last) {
    return vbslq_u8(vreinterpretq_u8_u32(vdupq_n_u32((1u << 8 * count) - 1)), last, first);
  }
  // `n` bits from bit `shift` of v on, and above them `m` bits from bit `from` of `upper` on.
  template <int shift, int n, int from, int m>
  static FEWBIT_INLINE bytes with_upper(bytes v, bytes upper) {
    const bytes mask = vdupq_n_u8(static_cast<uint8_t>((1 << (n + m)) - 1));
    if constexpr (shift == 0)
      v = vsliq_n_u8(v, moved_up<-from>(upper), n);
    else if constexpr (shift + n == 8)
      v = vsriq_n_u8(moved_up<n - from>(upper), v, shift);
    else
      v = either(moved<shift, n, 0>(v), moved<from, m, n>(upper));
    return n + m == 8 ? v : vandq_u8(v, mask);
  }
  template <int by>
  static FEWBIT_INLINE bytes moved_up(bytes v) {
    if constexpr (by > 0) return vshlq_n_u8(v, by > 0 ? by : 0);
    if constexpr (by < 0) return vshrq_n_u8(v, by < 0 ? -by : 1);
    return v;
  }
  // Bit `from` of every byte of `bits` as bit `to` of v, which is 0 there. Tested, not shifted: one unit shifts.
  template <int from, int to>
  static FEWBIT_INLINE bytes with_bit(bytes v, bytes bits) {
    return selected<to>(v, vtstq_u8(bits, vdupq_n_u8(1 << from)));
  }
  // The same where bits `at` of every dword are those of its four bytes.
  template <std::array<int, 4> at, int to>
  static FEWBIT_INLINE bytes with_bits(bytes v, bytes dwords) {
    constexpr uint32_t bit = 1u << at[0] % 8 | 256u << at[1] % 8 | 65536u << at[2] % 8 | 16777216u << at[3] % 8;
    const bytes four = vqtbl1q_u8(dwords, in_dwords(at[0] / 8, at[1] / 8, at[2] / 8, at[3] / 8));
    return selected<to>(v, vtstq_u8(four, vreinterpretq_u8_u32(vdupq_n_u32(bit))));
  }
  template <int to>
  static FEWBIT_INLINE bytes selected(bytes v, bytes is_set) {
    return vbslq_u8(vdupq_n_u8(1 << to), is_set, v);
  }

  // Dwords of both alternately, and apart again.
  static FEWBIT_INLINE f32 zip_low(f32 a, f32 b) { return vzip1q_f32(a, b); }
  static FEWBIT_INLINE f32 zip_high(f32 a, f32 b) { return vzip2q_f32(a, b); }
  static FEWBIT_INLINE f32 even_of(f32 a, f32 b) { return vuzp1q_f32(a, b); }
  static FEWBIT_INLINE f32 odd_of(f32 a, f32 b) { return vuzp2q_f32(a, b); }
  static FEWBIT_INLINE bytes zip_low(bytes a, bytes b) {
    return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  }
  static FEWBIT_INLINE bytes zip_high(bytes a, bytes b) {
    return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  }
};
