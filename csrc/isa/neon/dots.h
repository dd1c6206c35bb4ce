// Dot products of bytes without instructions for them: two products are added up as 16 bits, which have room for two of
// signed bytes and activations (2 * 128 * 127 < 2^15), then four as 32.

struct Dots : Factors {
  static constexpr bool can_smmla = false;
  static FEWBIT_INLINE ints add_products(ints sum, int8x16_t a, int8x16_t b) {
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
  }
  // Four codes of every row times the four activations of lane i.
  template <int i>
  static FEWBIT_INLINE ints dot_lane(ints sum, bytes q, bytes x) {
    const int8x16_t a = vreinterpretq_s8_u8(q), b = vreinterpretq_s8_u32(vdupq_laneq_u32(vreinterpretq_u32_u8(x), i));
    return add_products(sum, a, b);
  }
  static constexpr int room(int most) { return 32767 / (2 * 127 * most); }

  template <bool is_signed = false>
  static FEWBIT_INLINE ints dot_add(ints sum, bytes q, const int8_t* x) {
    return add_products(sum, vreinterpretq_s8_u8(q), vld1q_s8(x));
  }
  // Four codes of at most `most` of every row in each of `count` vectors, times four activations of each column; so for
  // each of `sets`. As many products are added up as 16 bits as there is room for.
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    constexpr int fit = is_signed ? 1 : room(most), at_once = fit < count ? fit : count;
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      (some_lanes<sets, Cols, i * at_once, std::min((i + 1) * at_once, count)>(q, x, out), ...);
    }(std::make_integer_sequence<int, (count + at_once - 1) / at_once>{});
  }
  // Vectors `first` to `last`. gcc leaves these loops as they are unless told.
  template <int sets, int Cols, int first, int last>
  static FEWBIT_INLINE void some_lanes(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    int16x8_t low[sets][Cols], high[sets][Cols];
#pragma GCC unroll 8
    for (int i = first; i < last; ++i) {
#pragma GCC unroll 8
      for (int c = 0; c < Cols; ++c) {
        const int32_t four = fewbit::load<int32_t>(reinterpret_cast<const uint8_t*>(x[c] + 4 * i));
        const int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(four));
#pragma GCC unroll 8
        for (int s = 0; s < sets; ++s) {
          const int8x16_t a = vreinterpretq_s8_u8(q[s][i]);
          const int8x8_t half = vget_low_s8(a);
          low[s][c] = i == first ? vmull_s8(half, vget_low_s8(b)) : vmlal_s8(low[s][c], half, vget_low_s8(b));
          high[s][c] = i == first ? vmull_high_s8(a, b) : vmlal_high_s8(high[s][c], a, b);
        }
      }
    }
    for (int s = 0; s < sets; ++s) {
      for (int c = 0; c < Cols; ++c) {
        const int16x8_t two = vpaddq_s16(low[s][c], high[s][c]);
        out[s][c] = first == 0 ? vpaddlq_s16(two) : vpadalq_s16(out[s][c], two);
      }
    }
  }
};
