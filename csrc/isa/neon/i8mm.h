// Matrix products: two rows of eight bytes times two columns of eight, in one instruction.

struct Dots : DotProducts {
  static constexpr bool can_smmla = true;
  // Eight codes of two rows times eight activations of two columns.
  static FEWBIT_INLINE ints dot_pairs(ints sum, bytes rows, bytes columns) {
    return vmmlaq_s32(sum, vreinterpretq_s8_u8(rows), vreinterpretq_s8_u8(columns));
  }
  // Eight bytes of two columns.
  static FEWBIT_INLINE int8x16_t two_columns(const int8_t* a, const int8_t* b) {
    return vcombine_s8(vld1_s8(a), vld1_s8(b));
  }
  // Eight codes of rows 0 and 1, or 2 and 3, from two vectors that hold four of every row.
  static FEWBIT_INLINE int8x16_t two_rows(bytes a, bytes b, bool last) {
    const int32x4_t v = vreinterpretq_s32_u8(a), w = vreinterpretq_s32_u8(b);
    return vreinterpretq_s8_s32(last ? vzip2q_s32(v, w) : vzip1q_s32(v, w));
  }
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    static_assert(count % 2 == 0);
    if constexpr (Cols % 2 != 0) {
      return DotProducts::panel_dot<sets, Cols, count, most, is_signed>(q, x, out);
    } else {
      ints sums[sets][2][Cols / 2];  // two rows of two columns
      for (auto& set : sums) {
        for (auto& rows : set) {
          for (auto& sum : rows) sum = no_ints();
        }
      }
      for (int i = 0; i < count; i += 2) {
        int8x16_t b[Cols / 2];
        for (int c = 0; c < Cols / 2; ++c) b[c] = two_columns(x[2 * c] + 4 * i, x[2 * c + 1] + 4 * i);
        for (int s = 0; s < sets; ++s) {
          for (int r = 0; r < 2; ++r) {
            const int8x16_t a = two_rows(q[s][i], q[s][i + 1], r == 1);
            for (int c = 0; c < Cols / 2; ++c) sums[s][r][c] = vmmlaq_s32(sums[s][r][c], a, b[c]);
          }
        }
      }
      for (int s = 0; s < sets; ++s) {
        for (int c = 0; c < Cols / 2; ++c) {
          out[s][2 * c] = vuzp1q_s32(sums[s][0][c], sums[s][1][c]);
          out[s][2 * c + 1] = vuzp2q_s32(sums[s][0][c], sums[s][1][c]);
        }
      }
    }
  }
};
