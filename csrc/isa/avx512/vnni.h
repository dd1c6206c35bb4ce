// Dot products with VNNI: unsigned codes times signed activations.
#if defined(FEWBIT_EMULATE)
#include "isa/emulated_vnni.h"
#endif

struct Dots : Floats {
  static constexpr int max_unsigned = 255, micro_columns = 8, micro_sets = 1;

  static FEWBIT_INLINE ints add_words(ints sum, ints a, ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static FEWBIT_INLINE ints add_bytes(ints sum, bytes q, bytes x) { return _mm512_dpbusd_epi32(sum, q, x); }
  // Two vectors of codes up to 64.
  static FEWBIT_INLINE ints add_two(ints sum, bytes q, bytes x, bytes r, bytes y) {
    return add_bytes(add_bytes(sum, q, x), r, y);
  }
  template <bool is_signed = false>
  static FEWBIT_INLINE ints dot_add(ints sum, bytes q, const int8_t* x) {
    static_assert(!is_signed);
    return add_bytes(sum, q, _mm512_load_si512(x));
  }
  template <bool is_signed>
  static FEWBIT_INLINE f32 dot(bytes q, const int8_t* x) {
    return to_floats(dot_add<is_signed>(no_ints(), q, x));
  }
  static FEWBIT_INLINE ints lane_dot(ints sum, bytes q, const int8_t* four) {  // the same four for every lane
    return add_bytes(sum, q, same(four));
  }
  // Four codes of every row in each of `count` vectors, times four activations of each column; so for each of `sets`.
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    static_assert(!is_signed);
    for (int s = 0; s < sets; ++s) {
      for (int c = 0; c < Cols; ++c) out[s][c] = no_ints();
      for (int i = 0; i < count; ++i) {
        const bytes w = q[s][i];
        for (int c = 0; c < Cols; ++c) out[s][c] = lane_dot(out[s][c], w, x[c] + 4 * i);
      }
    }
  }

  // What dots are multiplied by: a word, as long as they are words too; what lies above their sign counts for nothing.
  template <int i, bool is_signed>
  static FEWBIT_INLINE ints weight(bytes v) {
    return is_signed ? high_bytes(pick<-1, i, -1, -1>(v)) : pick<i, -1, -1, -1>(v);
  }
  static constexpr bool room_for_words(int dot, int first) { return dot + first <= 32767; }
  static FEWBIT_INLINE ints start(int v) { return all_32(v); }
  // `first` and the dots of `count` vectors, times `weight`, added to `sum`.
  template <int count, int most, int zero>
  static FEWBIT_INLINE ints weighted(const bytes* q, const int8_t* x, ints first, ints weight, ints sum) {
    ints dots = zero ? first : no_ints();
    for (int i = 0; i < count; ++i) dots = lane_dot(dots, q[i], x + 4 * i);
    return add_words(sum, dots, weight);
  }
};
