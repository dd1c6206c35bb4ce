// What kernels of one row at a time want, but for dot products: dots.h or dotprod.h.

struct Vectors {
  static constexpr int W = 16, L = 4, micro_columns = 4, micro_sets = 2;
  static constexpr int max_unsigned = 127;  // signed bytes times signed bytes
  static constexpr int registers = 32, streams = 1, least_micro = 12, prefetch_far = 0, prefetch_near = 0;
  static constexpr bool can_stride = false, can_gather = false, can_transpose = false, can_reduce = false,
                        has_tables = false, can_interleave = false, can_transform = true, integer_kv = false;
  using bytes = uint8x16_t;
  using f32 = float32x4_t;
  using ints = int32x4_t;

  static FEWBIT_INLINE bytes load(const uint8_t* p) { return vld1q_u8(p); }
  static FEWBIT_INLINE void store(uint8_t* p, bytes v) { vst1q_u8(p, v); }
  static FEWBIT_INLINE bytes either(bytes a, bytes b) { return vorrq_u8(a, b); }
  static FEWBIT_INLINE bytes flip(bytes v) { return veorq_u8(v, vdupq_n_u8(0x80)); }
  // `bits` bits of every byte, from bit `shift` to bit `dst`. One bit is tested: few units can shift.
  template <int shift, int bits, int dst>
  static FEWBIT_INLINE bytes moved(bytes v) {
    const bytes mask = vdupq_n_u8(static_cast<uint8_t>(((1 << bits) - 1) << dst));
    constexpr int down = shift - dst;
    if constexpr (bits == 8) return v;
    if constexpr (bits == 1 && down != 0) return vandq_u8(vtstq_u8(v, vdupq_n_u8(1 << shift)), mask);
    if constexpr (down > 0) v = vshrq_n_u8(v, down > 0 ? down : 1);
    if constexpr (down < 0) v = vshlq_n_u8(v, down < 0 ? -down : 0);
    constexpr bool alone = down > 0 ? shift + bits == 8 && dst == 0 : down < 0 && shift == 0 && dst + bits == 8;
    return alone ? v : vandq_u8(v, mask);
  }
  template <Lanes g, bool unshifted>
  static FEWBIT_INLINE bytes lanes(const uint8_t* p) {
    return moved<g.shift[0], g.bits, g.dst>(load(p + g.at[0]));
  }
  template <Scatter g>
  static FEWBIT_INLINE bytes scattered(const uint8_t* p) {
    static constexpr auto index = [] {
      std::array<uint8_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = g.byte[i];
      return t;
    }();
    static constexpr auto by = [] {  // one bit: where it is; else how far to shift
      std::array<uint8_t, 16> t{};
      for (int i = 0; i < 16; ++i) t[i] = static_cast<uint8_t>(g.bits == 1 ? 1 << g.shift[i] : g.dst - g.shift[i]);
      return t;
    }();
    const bytes v = vqtbl1q_u8(load(p + g.window[0]), load(index.data()));
    const bytes mask = vdupq_n_u8(static_cast<uint8_t>(((1 << g.bits) - 1) << g.dst));
    if constexpr (g.bits == 1) return vandq_u8(vtstq_u8(v, load(by.data())), mask);
    return vandq_u8(vshlq_u8(v, vreinterpretq_s8_u8(load(by.data()))), mask);
  }
  template <Codebook book, int bias>
  static FEWBIT_INLINE bytes lookup(bytes v) {
    return vqtbl1q_u8(load(lookup_table<book, bias>.data()), v);
  }
  // All bits of a byte where its bit of 16 is set.
  static FEWBIT_INLINE bytes where_set(uint32_t bits) {
    const uint8x8_t bit = vcreate_u8(0x8040201008040201ull);
    const bytes v = vcombine_u8(vdup_n_u8(static_cast<uint8_t>(bits)), vdup_n_u8(static_cast<uint8_t>(bits >> 8)));
    return vtstq_u8(v, vcombine_u8(bit, bit));
  }

  static FEWBIT_INLINE ints no_ints() { return vdupq_n_s32(0); }
  static FEWBIT_INLINE f32 to_floats(ints a) { return vcvtq_f32_s32(a); }
  // The bits of 1.5 * 2^23. Sums that begin with them are floats once it is taken away: a conversion takes four times
  // as long as a subtraction. Always loaded: to copy a register takes a vector unit, a load does not.
  static constexpr int32_t start_bits = 0x4b400000;
  static constexpr float start_float = 0x1.8p23f;
  static FEWBIT_INLINE ints start_at(const int32_t* p) {
    ints v;
    __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const int32_t (*)[4]>(p)));
    return v;
  }
  static FEWBIT_INLINE f32 start_at(const float* p) {
    f32 v;
    __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const float (*)[4]>(p)));
    return v;
  }
  static FEWBIT_INLINE ints start() {
    alignas(16) static constexpr int32_t bits[4] = {start_bits, start_bits, start_bits, start_bits};
    return start_at(bits);
  }
  template <int zero = 0>
  static FEWBIT_INLINE f32 from_start(ints sum) {  // sums below 2^22
    return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(start_float + zero));
  }
  static FEWBIT_INLINE void transpose(const uint8_t* in, size_t stride, uint8_t* out, size_t out_stride) {
    uint32x4_t r[4];
    for (size_t i = 0; i < 4; ++i) r[i] = vreinterpretq_u32_u8(load(in + i * stride));
    for (size_t h = 0; h < 2; ++h) {
      const uint32x4_t a = h ? vzip2q_u32(r[0], r[2]) : vzip1q_u32(r[0], r[2]);
      const uint32x4_t b = h ? vzip2q_u32(r[1], r[3]) : vzip1q_u32(r[1], r[3]);
      store(out + 2 * h * out_stride, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
      store(out + (2 * h + 1) * out_stride, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
    }
  }
  template <bool is_signed>
  static FEWBIT_INLINE void widen16(bytes v, f32* out) {
    for (int h = 0; h < 2; ++h) {
      if constexpr (is_signed) {
        const int8x16_t s = vreinterpretq_s8_u8(v);
        const int16x8_t half = vmovl_s8(h ? vget_high_s8(s) : vget_low_s8(s));
        out[2 * h] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(half)));
        out[2 * h + 1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(half)));
      } else {
        const uint16x8_t half = vmovl_u8(h ? vget_high_u8(v) : vget_low_u8(v));
        out[2 * h] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(half)));
        out[2 * h + 1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(half)));
      }
    }
  }
  template <int part, bool is_signed>
  static FEWBIT_INLINE f32 widen(bytes v) {
    f32 all[4];
    widen16<is_signed>(v, all);
    return all[part];
  }

  // Rows of the KV cache.
  template <Run16 g>
  static FEWBIT_INLINE bytes run(const uint8_t* p) {
    if constexpr (g.in_bits)
      return vandq_u8(where_set(fewbit::load<uint16_t>(p + g.at)), vdupq_n_u8(1 << g.dst));
    else
      return moved<g.shift, g.bits, g.dst>(load(p + g.at));
  }
  static FEWBIT_INLINE bytes either16(bytes a, bytes b) { return either(a, b); }
  template <Codebook book>
  static FEWBIT_INLINE bytes lookup16(bytes v) {
    return lookup<book, 0>(v);
  }

  // Activations.
  static FEWBIT_INLINE uint32_t largest_of_32(const float* x) {
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4) top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    return vmaxvq_u32(top);
  }
  static FEWBIT_INLINE int quantize_16(const float* x, float by, int8_t* out) {  // no number becomes 0
    int16x4_t q[4];
    for (int i = 0; i < 4; ++i) q[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), by)));
    const int8x8_t low = vmovn_s16(vcombine_s16(q[0], q[1])), high = vmovn_s16(vcombine_s16(q[2], q[3]));
    const int8x16_t all = vcombine_s8(low, high);
    vst1q_s8(out, all);
    return vaddlvq_s8(all);
  }

  // Floats.
  static FEWBIT_INLINE f32 splat(float x) { return vdupq_n_f32(x); }
  static FEWBIT_INLINE f32 alternate(float a, float b) { return f32{a, b, a, b}; }
  static FEWBIT_INLINE f32 zero() { return vdupq_n_f32(0); }
  static FEWBIT_INLINE f32 only(f32 x, const uint32_t* ones) {  // the rest is 0
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vld1q_u32(ones)));
  }
  static FEWBIT_INLINE f32 fma(f32 a, f32 b, f32 c) { return vfmaq_f32(c, a, b); }
  static FEWBIT_INLINE f32 fnma(f32 a, f32 b, f32 c) { return vfmsq_f32(c, a, b); }
  template <bool minus>
  static FEWBIT_INLINE f32 fma_odd(f32 a, f32 b, f32 c) {
    const f32 odd = vmulq_f32(a, alternate(0, minus ? -1 : 1));
    return vfmaq_f32(c, odd, b);
  }
  static FEWBIT_INLINE f32 mul(f32 a, f32 b) { return vmulq_f32(a, b); }
  static FEWBIT_INLINE f32 add(f32 a, f32 b) { return vaddq_f32(a, b); }
  template <std::array<int, 16> i>
  static FEWBIT_INLINE f32 spread(f32 v) {
    static_assert(i[1] == i[0] && i[2] == i[0] && i[3] == i[0]);  // 16 neighbours have one scale
    return vdupq_laneq_f32(v, i[0]);
  }
  static FEWBIT_INLINE float sum(f32 v) { return vaddvq_f32(v); }
  static FEWBIT_INLINE void sums_of_4(const f32* v, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
  }
  static FEWBIT_INLINE f32 loadf(const float* p) { return vld1q_f32(p); }
  static FEWBIT_INLINE f32 loadu(const float* p) { return vld1q_f32(p); }
  static FEWBIT_INLINE void storef(float* p, f32 v) { vst1q_f32(p, v); }
  static FEWBIT_INLINE f32 larger(f32 a, f32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static FEWBIT_INLINE float top(f32 v) { return vmaxnmvq_f32(v); }
  static FEWBIT_INLINE bool any_positive(f32 v) { return vminvq_u32(vcleq_f32(v, zero())) == 0; }
  static FEWBIT_INLINE f32 exp(f32 x) {
    const f32 least = splat(-87.0f), v = vmaxq_f32(least, x);
    const f32 n = vrndnq_f32(vmulq_n_f32(v, 1.44269504f));
    f32 r = vfmsq_f32(v, n, splat(0.693359375f));
    r = vfmsq_f32(r, n, splat(-2.12194440e-4f));
    f32 p = splat(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = vfmaq_f32(splat(c), p, r);
    const ints power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    const f32 out = vmulq_f32(p, vreinterpretq_f32_s32(power));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(out), vcltq_f32(x, least)));
  }
};
