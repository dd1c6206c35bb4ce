// Dot products of bytes without VNNI: an instruction adds up two products as 16 bits, which must have room for them.
// Codes above 129 are therefore taken as signed ones, their signs given to the activations. `V`: vectors, and what can
// be done with them.

template <class V>
struct Pairs : V {
  using typename V::bytes, typename V::f32, typename V::ints;
  static constexpr int max_unsigned = 129;  // 2 * 127 * 129 < 2^15

  static constexpr int room(int most, int taken = 0) { return (32767 - taken) / (2 * 127 * most); }
  template <bool is_signed>
  static FEWBIT_INLINE ints pairs(bytes q, bytes x) {
    return is_signed ? V::two_products(V::sizes(q), V::with_signs(x, q)) : V::two_products(q, x);
  }
  static FEWBIT_INLINE ints add_words(ints sum, ints a, ints b) { return V::add_32(sum, V::dot_words(a, b)); }
  static FEWBIT_INLINE ints add_bytes(ints sum, bytes q, bytes x) {
    return add_words(sum, V::two_products(q, x), V::ones_16());
  }
  // Two vectors of codes up to 64.
  static FEWBIT_INLINE ints add_two(ints sum, bytes q, bytes x, bytes r, bytes y) {
    static_assert(room(64) >= 2);
    return add_words(sum, V::add_16(V::two_products(q, x), V::two_products(r, y)), V::ones_16());
  }
  static FEWBIT_INLINE bytes activations(const int8_t* x) { return V::load(reinterpret_cast<const uint8_t*>(x)); }
  template <bool is_signed>
  static FEWBIT_INLINE f32 dot(bytes q, const int8_t* x) {
    return V::to_floats(V::dot_words(pairs<is_signed>(q, activations(x)), V::ones_16()));
  }
  template <bool is_signed = false>
  static FEWBIT_INLINE ints dot_add(ints sum, bytes q, const int8_t* x) {
    return add_words(sum, pairs<is_signed>(q, activations(x)), V::ones_16());
  }
  // Kept out of trees of additions, which gcc makes of sums and has no registers for.
  static FEWBIT_INLINE ints in_order(ints sum) {
    __asm__("" : "+v"(sum));
    return sum;
  }
  // Four codes of at most `most` of every row in each of `count` vectors, times four activations of each column; so for
  // each of `sets`. As many sums of 16 bits are added up before they are widened as there is room for.
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    constexpr int fit = is_signed ? 1 : room(most), at_once = fit < count ? fit : count;
    for (int first = 0; first < count; first += at_once) {
      ints sums[sets][Cols];
      for (int i = first; i < first + at_once && i < count; ++i) {
        for (int c = 0; c < Cols; ++c) {
          const bytes four = V::same(x[c] + 4 * i);
          for (int s = 0; s < sets; ++s) {
            const ints two = pairs<is_signed>(q[s][i], four);
            sums[s][c] = i == first ? two : in_order(V::add_16(sums[s][c], two));
          }
        }
      }
      for (int s = 0; s < sets; ++s) {
        for (int c = 0; c < Cols; ++c) {
          const ints wide = V::dot_words(sums[s][c], V::ones_16());
          out[s][c] = first == 0 ? wide : V::add_32(out[s][c], wide);
        }
      }
    }
  }

  // What dots are multiplied by: both sums of 16 bits of a row.
  template <int i, bool is_signed>
  static FEWBIT_INLINE ints weight(bytes v) {
    return is_signed ? V::high_bytes(V::template pick<-1, i, -1, i>(v)) : V::template pick<i, -1, i, -1>(v);
  }
  static constexpr bool room_for_words(int, int first) { return first <= 16384; }
  static FEWBIT_INLINE ints start(int v) { return V::all_32(v & 0xffff); }
  // `first` and the dots of `count` vectors, times `weight`, added to `sum`.
  template <int count, int most, int zero>
  static FEWBIT_INLINE ints weighted(const bytes* q, const int8_t* x, ints first, ints weight, ints sum) {
    constexpr int fit = room(most, zero ? 16384 : 0), at_once = fit < count ? fit : count;
    static_assert(fit > 0);
    for (int from = 0; from < count; from += at_once) {
      ints sums = first;
      for (int i = from; i < from + at_once && i < count; ++i) {
        const ints two = V::two_products(q[i], V::same(x + 4 * i));
        sums = i == from && (zero == 0 || from > 0) ? two : in_order(V::add_16(sums, two));
      }
      sum = add_words(sum, sums, weight);
    }
    return sum;
  }
};
