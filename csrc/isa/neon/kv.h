// What attention wants beside vectors.h: reductions of several vectors, the Hadamard transform; and, with dot products,
// K and V as the integers that they are packed as.

struct Attention : ByLane {
  static FEWBIT_INLINE f32 fma_by(f32 a, float b, f32 c) { return vfmaq_n_f32(c, a, b); }
  static FEWBIT_INLINE void tops_of_4(const f32* v, float* out) {
    vst1q_f32(out, vpmaxnmq_f32(vpmaxnmq_f32(v[0], v[1]), vpmaxnmq_f32(v[2], v[3])));
  }
  // The Hadamard transform of the lanes, not normalized: a + b and a - b of lanes 1 and 2 apart.
  static FEWBIT_INLINE f32 hadamard(f32 x) {
    x = vfmaq_f32(vrev64q_f32(x), x, f32{1, -1, 1, -1});
    return vfmaq_f32(vextq_f32(x, x, 2), x, f32{1, 1, -1, -1});
  }

  // Integers in two bytes, high * 256 + low: in the last 16 bits of 1.5 * 2^23 + x is the integer x. 128 more is added,
  // so that the first byte is rounded and the sign of the second flipped.
  static FEWBIT_INLINE void two_bytes(const f32* x, float by, bytes& high, bytes& low) {
    uint16x8_t words[2];
    for (int i = 0; i < 2; ++i) {
      const f32 base = vdupq_n_f32(0x1.8p23f + 128);
      const f32 a = vfmaq_n_f32(base, x[2 * i], by), b = vfmaq_n_f32(base, x[2 * i + 1], by);
      words[i] = vuzp1q_u16(vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b));
    }
    const bytes a = vreinterpretq_u8_u16(words[0]), b = vreinterpretq_u8_u16(words[1]);
    high = vuzp2q_u8(a, b);
    low = veorq_u8(vuzp1q_u8(a, b), vdupq_n_u8(0x80));
  }
  // The greatest magnitude; what is no number stays so.
  static FEWBIT_INLINE f32 larger_size(f32 a, f32 x) { return vmaxq_f32(a, vabsq_f32(x)); }
  static FEWBIT_INLINE float top_size(f32 v) { return vmaxvq_f32(v); }
  static FEWBIT_INLINE int sum_of_bytes(bytes a, bytes b) {
    return vaddlvq_s8(vreinterpretq_s8_u8(a)) + vaddlvq_s8(vreinterpretq_s8_u8(b));
  }
  // One piece of 16 codes that are loaded already.
  template <Run16 g>
  static FEWBIT_INLINE bytes run_of(bytes v) {
    return moved<g.shift, g.bits, g.dst>(v);
  }
  // Four f16, `stride` bytes apart: joined in plain registers, which have nothing else to do.
  static FEWBIT_INLINE f32 four_halves(const uint8_t* p, size_t stride) {
    const auto at = [&](size_t i) { return uint64_t{fewbit::load<uint16_t>(p + i * stride)}; };
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48)));
  }
  // What is read from p, is read after `sum` is known: gcc reads all that it can before, and has no registers for it.
  static FEWBIT_INLINE void read_after(ints& sum, const uint8_t*& p) { __asm__ volatile("" : "+w"(sum), "+r"(p)); }
  static FEWBIT_INLINE ints dot_bytes(ints sum, bytes a, bytes b) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
  }
  // Four bytes of `b`, the same for every lane.
  template <int lane>
  static FEWBIT_INLINE ints dot_bytes_lane(ints sum, bytes a, bytes b) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b), lane);
  }
  // The sums of the lanes of four vectors.
  static FEWBIT_INLINE ints sums_of_ints(const ints* v) {
    return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
  }
  // 16 bytes of each of four tokens, the four side by side.
  static FEWBIT_INLINE void zip_tokens(const bytes* v, bytes* out) {
    const bytes a = vzip1q_u8(v[0], v[2]), b = vzip2q_u8(v[0], v[2]);
    const bytes c = vzip1q_u8(v[1], v[3]), d = vzip2q_u8(v[1], v[3]);
    out[0] = vzip1q_u8(a, c);
    out[1] = vzip2q_u8(a, c);
    out[2] = vzip1q_u8(b, d);
    out[3] = vzip2q_u8(b, d);
  }
};
