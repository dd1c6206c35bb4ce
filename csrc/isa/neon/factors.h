// Scales and offsets of blocks, four to a vector.

struct Factors : Vectors {
  static FEWBIT_INLINE float half_from(uint16_t h) {
    __fp16 v;
    std::memcpy(&v, &h, sizeof v);
    return v;
  }
  template <Real r>
  static FEWBIT_INLINE float real(const uint8_t* p) {
    if constexpr (r == Real::f16)
      return half_from(fewbit::load<uint16_t>(p));
    else
      return read_real(r, p);
  }
  template <Real r>
  static FEWBIT_INLINE f32 splat_real(const uint8_t* p) {
    return splat(real<r>(p));
  }
  static FEWBIT_INLINE f32 half(const uint8_t* p) { return splat_real<Real::f16>(p); }
  static FEWBIT_INLINE f32 half_pair(const uint8_t* p) { return alternate(real<Real::f16>(p), real<Real::f16>(p + 2)); }
  static FEWBIT_INLINE void two_halves(const uint8_t* p, f32& a, f32& b) {
    a = half(p);
    b = half(p + 2);
  }
  static FEWBIT_INLINE f32 halves(uint16x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
  template <Real r>
  static FEWBIT_INLINE f32 reals_at(const uint8_t* p) {
    if constexpr (r == Real::f32) return vreinterpretq_f32_u8(load(p));
    const uint16x4_t v = vreinterpret_u16_u8(vld1_u8(p));
    if constexpr (r == Real::f16) return halves(v);
    return vreinterpretq_f32_u32(vshll_n_u16(v, 16));
  }

  // Four bytes, one in each lane.
  static FEWBIT_INLINE uint32x4_t widened(uint32_t four) {
    constexpr uint8_t no = 0xff;
    const bytes index = {0, no, no, no, 1, no, no, no, 2, no, no, no, 3, no, no, no};
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), index));
  }
  // Less than 2^23 as floats, minus `zero`: they are the last bits of 2^23 and more.
  static FEWBIT_INLINE f32 less(uint32x4_t v, int zero) {
    const f32 above = vreinterpretq_f32_u32(vorrq_u32(v, vdupq_n_u32(0x4b000000)));
    return vsubq_f32(above, splat(8388608.0f + static_cast<float>(zero)));
  }
  // Whether the pieces k of four small integers are neighbouring bytes, all taken alike: then they are taken out of a
  // word of an ordinary register, of which there are enough.
  template <Small t, int k>
  static constexpr bool in_word = [] {
    for (int l = 0; l < 4; ++l) {
      if (t.byte[k][l] != t.byte[k][0] + l || t.bytes[k][l] != 1 || t.mask[k][l] != t.mask[k][0]) return false;
      if (t.shift[k][l] != t.shift[k][0] || t.dst[k][l] != t.dst[k][0]) return false;
    }
    return true;
  }();
  template <Small t>
  static constexpr bool in_words = in_word<t, 0> && (t.pieces < 2 || in_word<t, 1>) && (t.pieces < 3 || in_word<t, 2>);
  template <Small t, int k>
  static FEWBIT_INLINE uint32_t word_of(const uint8_t* p) {
    if constexpr (k >= t.pieces) return 0;
    const uint32_t word = fewbit::load<uint32_t>(p + t.window + t.byte[k][0]);
    return (word >> t.shift[k][0] & 0x01010101u * static_cast<uint32_t>(t.mask[k][0])) << t.dst[k][0];
  }
  template <Small t, int k>
  static FEWBIT_INLINE uint32x4_t piece(bytes window) {
    if constexpr (k >= t.pieces) return vdupq_n_u32(0);
    static constexpr auto index = [] {
      std::array<uint8_t, 16> out{};
      for (int i = 0; i < 16; ++i) {
        const bool used = t.mask[k][i / 4] && i % 4 < t.bytes[k][i / 4];
        out[i] = static_cast<uint8_t>(used ? t.byte[k][i / 4] + i % 4 : 0xff);
      }
      return out;
    }();
    static constexpr auto by = [] {  // how far to shift, then what to keep
      std::array<std::array<int32_t, 4>, 2> out{};
      for (int l = 0; l < 4; ++l) out[0][l] = t.dst[k][l] - t.shift[k][l], out[1][l] = t.mask[k][l] << t.dst[k][l];
      return out;
    }();
    const uint32x4_t v = vreinterpretq_u32_u8(vqtbl1q_u8(window, load(index.data())));
    return vandq_u32(vshlq_u32(v, vld1q_s32(by[0].data())), vreinterpretq_u32_s32(vld1q_s32(by[1].data())));
  }
  template <Small t>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    constexpr int zero = t.is_signed ? 128 : t.times == 1 ? t.zero[0] : 0;
    uint32x4_t v;
    if constexpr (in_words<t>) {
      const uint32_t four = word_of<t, 0>(p) | word_of<t, 1>(p) | word_of<t, 2>(p);
      v = widened(t.is_signed ? four ^ 0x80808080u : four);
    } else {
      const bytes window = load(p + t.window);
      v = vorrq_u32(vorrq_u32(piece<t, 0>(window), piece<t, 1>(window)), piece<t, 2>(window));
      if constexpr (t.is_signed) v = veorq_u32(v, vdupq_n_u32(0x80));
    }
    return less(v, zero);
  }

  // Half of 2^(e - 127) for four exponents.
  static FEWBIT_INLINE f32 powers(uint32x4_t e) {
    const uint32x4_t one = vdupq_n_u32(1);
    const uint32x4_t low = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, one), 23);
    return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, one), normal, low));
  }
  static FEWBIT_INLINE f32 half_ue4m3(uint32x4_t code) {  // halves of what four codes stand for
    const uint32x4_t u = vandq_u32(code, vdupq_n_u32(0x7f));
    const uint32x4_t normal = vaddq_u32(vshlq_n_u32(u, 20), vdupq_n_u32(119 << 23));
    const f32 low = vmulq_n_f32(vcvtq_f32_u32(u), 0x1p-10f);  // subnormals
    const uint32x4_t all = vbslq_u32(vcltq_u32(u, vdupq_n_u32(8)), vreinterpretq_u32_f32(low), normal);
    return vreinterpretq_f32_u32(vbicq_u32(all, vceqq_u32(code, vdupq_n_u32(0x7f))));
  }
  // One float for each block of `block` values and `size` bytes: of groups g to g + 3, 32 values each.
  template <Real r, int block, int size, int g>
  static FEWBIT_INLINE f32 four_apart(const uint8_t* p) {
    constexpr int at[4] = {g * 32 / block * size, (g + 1) * 32 / block * size, (g + 2) * 32 / block * size,
                           (g + 3) * 32 / block * size};
    if constexpr (at[0] == at[3]) {
      return splat_real<r>(p + at[0]);
    } else if constexpr (r == Real::f16) {
      uint16x4_t v = vdup_n_u16(fewbit::load<uint16_t>(p + at[0]));
      v = vset_lane_u16(fewbit::load<uint16_t>(p + at[1]), v, 1);
      v = vset_lane_u16(fewbit::load<uint16_t>(p + at[2]), v, 2);
      return halves(vset_lane_u16(fewbit::load<uint16_t>(p + at[3]), v, 3));
    } else if constexpr (r == Real::e8m0) {
      return powers(uint32x4_t{p[at[0]], p[at[1]], p[at[2]], p[at[3]]});
    } else {
      return f32{real<r>(p + at[0]), real<r>(p + at[1]), real<r>(p + at[2]), real<r>(p + at[3])};
    }
  }
  template <Real r, int block, int size, bool offset>
  static FEWBIT_INLINE void strided(const uint8_t* p, f32* out) {
    out[0] = four_apart<r, block, size, 0>(p);
    out[1] = four_apart<r, block, size, 4>(p);
    if constexpr (offset) {
      out[2] = four_apart<r, block, size, 0>(p + real_bytes(r));
      out[3] = four_apart<r, block, size, 4>(p + real_bytes(r));
    }
  }
  template <Real r, int size>
  static FEWBIT_INLINE void quads(const uint8_t* p, f32* out) {
    static_assert(r == Real::ue4m3);
    for (int v = 0; v < 4; ++v) out[v] = half_ue4m3(widened(fewbit::load<uint32_t>(p + v * size)));
  }

  struct f32x8 {
    f32 low, high;
  };
  template <Real r>
  static FEWBIT_INLINE f32x8 eight(const uint8_t* p) {
    if constexpr (r == Real::f32 || r == Real::f16) {
      return {reals_at<r>(p), reals_at<r>(p + 4 * real_bytes(r))};
    } else {
      constexpr uint32_t flip = r == Real::i8 ? 0x80808080u : 0;
      constexpr int zero = r == Real::i8 ? 128 : 0;
      return {less(widened(fewbit::load<uint32_t>(p) ^ flip), zero),
              less(widened(fewbit::load<uint32_t>(p + 4) ^ flip), zero)};
    }
  }
  static FEWBIT_INLINE f32x8 splat8(float x) { return {splat(x), splat(x)}; }
  static FEWBIT_INLINE f32x8 mul8(f32x8 a, f32x8 b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }
  static FEWBIT_INLINE void deal(f32x8 v, int shift, f32* out) {
    switch (shift) {
      case 0: out[0] = v.low, out[1] = v.high; break;
      case 1: out[0] = vzip1q_f32(v.low, v.low), out[1] = vzip2q_f32(v.low, v.low); break;
      case 2: out[0] = vdupq_laneq_f32(v.low, 0), out[1] = vdupq_laneq_f32(v.low, 1); break;
      default: out[0] = out[1] = vdupq_laneq_f32(v.low, 0);
    }
  }
  template <bool offset>
  static FEWBIT_INLINE void deal(f32x8 scales, f32x8 offsets, int shift, f32* out, std::bool_constant<offset>) {
    deal(scales, shift, out);
    if constexpr (offset) deal(offsets, shift, out + 2);
  }
};
