// Columns of 8-bit activations as kernels/by_lane.h reads them, four of them together: group by group, everything in
// the order in which it is wanted.

// What W columns bring to a group: codes in the order of LaneCodes; what their dot products begin with, so that the
// zero point is in them and they are the bits of floats; scales, what is added to the products with these to take back
// the start, and scales times sums for offsets.
template <int group_size, int W>
struct alignas(16) LaneGroup {
  int8_t q[W][group_size];
  int32_t start[W][4];
  float minus_start[W][4], d[4], s[4];
};
// The same for products of two rows by two columns, eight values of each: everything by pairs of columns.
template <int group_size, int W>
struct alignas(16) PairGroup {
  static constexpr int pairs = W / 2;
  int8_t q[group_size / 8][pairs][2][8];
  int32_t start[pairs][4];
  float minus_start[pairs][4], d[pairs][4], s[pairs][4];
};

// How many columns a set of so many is packed as.
constexpr int lane_width(size_t columns) { return columns > 2 ? 4 : static_cast<int>(columns); }

template <class F>
struct LaneColumns {
  using C = LaneCodes<F>;
  using P = KBlock<F>;
  using I = typename Own<F>::type;
  static constexpr int group_size = C::group_size, groups = C::groups;

  template <class Group>
  static FEWBIT_INLINE auto* set(auto* x, size_t number, size_t k) {  // the packed set of this number
    using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(x)>>, const uint8_t, uint8_t>;
    using To = std::conditional_t<std::is_const_v<Bytes>, const Group, Group>;
    return reinterpret_cast<To*>(static_cast<Bytes*>(x) + number * bytes(k));
  }
  static size_t bytes(size_t k) {  // of a set
    return k / kBlockK * groups * std::max(sizeof(LaneGroup<group_size, 4>), sizeof(PairGroup<group_size, 4>));
  }

  // By how much the runs of each group are rotated, and its codes are too large.
  struct Order {
    int8_t rotated[groups] = {}, unshifted_by[groups] = {};
  };
  static constexpr Order order = [] {
    Order out;
    for (int g = 0; g < groups; ++g) {
      out.rotated[g] = static_cast<int8_t>(C::rotated(g)),
      out.unshifted_by[g] = static_cast<int8_t>(C::unshifted_by(g));
    }
    return out;
  }();
  static constexpr bool rotates = [] {
    for (const int by : order.rotated) {
      if (by > 0) return true;
    }
    return false;
  }();

  template <int by>
  static FEWBIT_INLINE void rotate(const int8_t* q, int8_t* out) {
    constexpr int n = C::run(0);
    for (int r = 0; r < group_size; r += n) {
      std::memcpy(out + r, q + r + n - by, by);
      std::memcpy(out + r + by, q + r, n - by);
    }
  }
  static FEWBIT_INLINE void codes(const Activation& x, int g, int8_t* out) {
    const int8_t* q = x.q + g * group_size;
    switch (rotates ? order.rotated[g] : 0) {
      case 1: return rotate<1>(q, out);
      case 2: return rotate<2>(q, out);
      case 3: return rotate<3>(q, out);
      default: std::memcpy(out, q, group_size);
    }
  }
  // To 22 bits, so that the product with the start, which has two, is exact: one multiply-add then gives what it gives
  // without the start. Scales from 2^104 on overflow.
  static FEWBIT_INLINE float scale(const Activation& x, int g) {
    const float own = group_size == 16 ? x.d16[g] : x.d32[g];
    return bits_f32((f32_bits(own) + 2) & ~3u) / static_cast<float>(1 << order.unshifted_by[g]);
  }
  static FEWBIT_INLINE float offset(const Activation& x, int g) {
    return (group_size == 16 ? x.s16[g] : x.s32[g]) * F::offset_sign;
  }
  static FEWBIT_INLINE int32_t start(const Activation& x, int g) {
    const int sum = group_size == 16 ? x.sums[g] : x.sums[2 * g] + x.sums[2 * g + 1];
    return I::start_bits - P::code.zero * sum * (1 << order.unshifted_by[g]);
  }
  template <int W>
  static FEWBIT_INLINE void put(const Activation& x, int g, int c, LaneGroup<group_size, W>& out) {
    codes(x, g, out.q[c]);
    for (auto& v : out.start[c]) v = start(x, g);
    out.d[c] = scale(x, g), out.s[c] = offset(x, g);
    for (auto& v : out.minus_start[c]) v = -I::start_float * out.d[c];
  }
  template <int W>
  static FEWBIT_INLINE void put(const Activation& x, int g, int c, PairGroup<group_size, W>& out) {
    int8_t q[group_size];
    codes(x, g, q);
    for (int i = 0; i < group_size / 8; ++i) std::memcpy(out.q[i][c / 2][c % 2], q + 8 * i, 8);
    for (int l = c % 2; l < 4; l += 2) {
      out.start[c / 2][l] = start(x, g);
      out.d[c / 2][l] = scale(x, g), out.s[c / 2][l] = offset(x, g);
      out.minus_start[c / 2][l] = -I::start_float * out.d[c / 2][l];
    }
  }
  // Columns that are wanted for the width but not there are those before them.
  template <class Group>
  static FEWBIT_ONCE void pack(const Activation* x, size_t columns, int width, size_t k_blocks, Group* out) {
    for (size_t s = 0; s < k_blocks; ++s, out += groups) {
      for (int c = 0; c < width; ++c) {
        const Activation& column = x[std::min<size_t>(c, columns - 1) * k_blocks + s];
#pragma GCC unroll 1
        for (int g = 0; g < groups; ++g) put(column, g, c, out[g]);
      }
    }
  }
};

// Calls f(width, first column) for every set of columns.
template <class Fn>
FEWBIT_INLINE void each_set(size_t columns, Fn&& f) {
  for (size_t c = 0; c < columns; c += kLaneSet) {
    switch (lane_width(columns - c)) {
      case 1: f(std::integral_constant<int, 1>{}, c); break;
      case 2: f(std::integral_constant<int, 2>{}, c); break;
      default: f(std::integral_constant<int, 4>{}, c);
    }
  }
}

// By pairs there are two columns at least.
template <class F, bool by_pairs = false>
void pack_lanes(const Activation* x, size_t columns, size_t k, size_t set, void* out) {
  using L = LaneColumns<F>;
  const size_t k_blocks = k / kBlockK, first = set * kLaneSet;
  each_set(std::min(columns - first, kLaneSet), [&](auto width, size_t) {
    constexpr int W = by_pairs && width == 1 ? 2 : width;
    using Group = std::conditional_t<by_pairs, PairGroup<L::group_size, W>, LaneGroup<L::group_size, W>>;
    L::pack(x + first * k_blocks, columns - first, W, k_blocks, L::template set<Group>(out, set, k));
  });
}
