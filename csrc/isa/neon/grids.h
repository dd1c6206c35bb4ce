// Dots of some vectors at once; points of grids and base-3 digits, straight into vectors.

struct Grids : Dots {
  // `count` vectors of codes times as many activations, which have one scale.
  template <bool is_signed, int count>
  static FEWBIT_INLINE f32 dots(const bytes* q, const int8_t* x) {
    ints sum = start();
    for (int i = 0; i < count; ++i) sum = dot_add<is_signed>(sum, q[i], x + i * W);
    return from_start(sum);
  }
  template <bool is_signed>
  static FEWBIT_INLINE f32 dot(bytes q, const int8_t* x) {
    return dots<is_signed, 1>(&q, x);
  }

  // 16 bytes from points of four or eight.
  template <int width>
  static FEWBIT_INLINE bytes joined_points(const int8_t* const* at) {
    if constexpr (width == 8) {
      return vreinterpretq_u8_s8(vcombine_s8(vld1_s8(at[0]), vld1_s8(at[1])));
    } else {
      const auto four = [&](int i) { return fewbit::load<uint32_t>(reinterpret_cast<const uint8_t*>(at[i])); };
      uint32x4_t v = vdupq_n_u32(four(0));
      v = vsetq_lane_u32(four(1), v, 1);
      v = vsetq_lane_u32(four(2), v, 2);
      return vreinterpretq_u8_u32(vsetq_lane_u32(four(3), v, 3));
    }
  }
  // A bit of `signs` takes the sign of a code away.
  template <bool shift, int bias>
  static FEWBIT_INLINE bytes signed_codes(bytes v, uint64_t signs) {
    const bytes is_set = where_set(static_cast<uint32_t>(signs));
    if constexpr (shift)  // 8 * v + 1 + bias - 2 * bit
      return vaddq_u8(vaddq_u8(vshlq_n_u8(v, 3), vdupq_n_u8(1 + bias)), vaddq_u8(is_set, is_set));
    else
      return vaddq_u8(vsubq_u8(veorq_u8(v, is_set), is_set), vdupq_n_u8(bias));
  }
  // Base-3 digits: of byte * 3^n mod 256, its place among three thirds.
  template <Trits t, int j>
  static FEWBIT_INLINE bytes digits(const uint8_t* p) {
    static_assert(t.parts[0].bytes == 32 && t.parts[0].digits == 5 && t.parts[1].bytes == 16 &&
                  t.parts[1].digits == 5 && t.parts[2].bytes == 4 && t.parts[2].digits == 4);
    static constexpr auto power = [] {
      std::array<uint8_t, 16> out{};
      for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(power_of_3(16 * j + i));
      return out;
    }();
    bytes v;
    if constexpr (j < 10)
      v = load(p + t.parts[0].first + 16 * (j % 2));
    else if constexpr (j < 15)
      v = load(p + t.parts[1].first);
    else
      v = vreinterpretq_u8_u32(vdupq_n_u32(fewbit::load<uint32_t>(p + t.parts[2].first)));
    if constexpr (power[15] != 1) v = vmulq_u8(v, load(power.data()));
    const bytes thirds = vaddq_u8(vcgeq_u8(v, vdupq_n_u8(86)), vcgeq_u8(v, vdupq_n_u8(171)));
    return vsubq_u8(vdupq_n_u8(0), thirds);
  }
};
