// Dot products of four signed bytes in one instruction.

struct DotProducts : Factors {
  static constexpr bool can_smmla = false, integer_kv = true;
  // Four codes of every row times the four activations of lane i. As it is written: gcc would copy sums to and fro.
  template <int i>
  static FEWBIT_INLINE ints dot_lane(ints sum, bytes q, bytes x) {
    __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(q), "w"(x), "i"(i));
    return sum;
  }
  template <bool is_signed = false>
  static FEWBIT_INLINE ints dot_add(ints sum, bytes q, const int8_t* x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(q), vld1q_s8(x));
  }
  // Four codes of every row in each of `count` vectors, times four activations of each column; so for each of `sets`.
  // A load of 16 activations serves four vectors.
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    static_assert(count % 4 == 0);
    for (int s = 0; s < sets; ++s) {
      for (int c = 0; c < Cols; ++c) out[s][c] = no_ints();
    }
    for (int i = 0; i < count; i += 4) {
      int8x16_t b[Cols];
      for (int c = 0; c < Cols; ++c) b[c] = vld1q_s8(x[c] + 4 * i);
      [&]<int... lane>(std::integer_sequence<int, lane...>) FEWBIT_LAMBDA_INLINE {
        (add_lane<lane, sets, Cols>(q, i, b, out), ...);
      }(std::make_integer_sequence<int, 4>{});
    }
  }
  template <int lane, int sets, int Cols>
  static FEWBIT_INLINE void add_lane(const bytes* const* q, int i, const int8x16_t* x, ints (*out)[Cols]) {
    for (int s = 0; s < sets; ++s) {
      const int8x16_t a = vreinterpretq_s8_u8(q[s][i + lane]);
      for (int c = 0; c < Cols; ++c) out[s][c] = vdotq_laneq_s32(out[s][c], a, x[c], lane);
    }
  }
};
