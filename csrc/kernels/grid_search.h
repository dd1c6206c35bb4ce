// Finds the points, signs and scales of grid formats that lose least: src/fewbit/formats/grid_search.py in native code,
// with the same arithmetic in the same order. Sixteen points of the grid are compared side by side, one in each lane.

namespace encoding {

constexpr int kGridStarts = 6, kGridRefits = 1, kGridRounds = 2;

template <class F>
struct GridShape {
  static constexpr int width = F::codes.width, per_block = F::block / width;
  static constexpr int levels = sizeof(F::levels), count = sizeof(F::points.values) / width;
  static constexpr int lattice = [] {
    int n = 1;
    for (int i = 0; i < width; ++i) n *= levels;
    return n;
  }();
};

// The points nearest to each point of the whole lattice: their numbers, and their levels side by side.
template <int lattice, int width>
struct NearPoints {
  uint16_t number[lattice][kWideLanes];
  int8_t level[lattice][width][kWideLanes];

  template <class F>
  void fill(int at) {
    int target[width], distance[kWideLanes];
    for (int i = 0, n = at; i < width; ++i, n /= GridShape<F>::levels) target[i] = F::levels[n % GridShape<F>::levels];
    int used = 0;
    for (int p = 0; p < GridShape<F>::count; ++p) {
      int d = 0;
      for (int i = 0; i < width; ++i) {
        const int apart = target[i] - F::points.values[p][i];
        d += apart * apart;
      }
      if (used == kWideLanes && d >= distance[used - 1]) continue;
      int place = used < kWideLanes ? used++ : used - 1;
      for (; place > 0 && distance[place - 1] > d; --place) {
        distance[place] = distance[place - 1];
        number[at][place] = number[at][place - 1];
      }
      distance[place] = d;
      number[at][place] = static_cast<uint16_t>(p);
    }
    for (int l = 0; l < kWideLanes; ++l) {
      for (int i = 0; i < width; ++i) level[at][i][l] = F::points.values[number[at][l]][i];
    }
  }
};

template <class F>
const auto& near_points() {
  using S = GridShape<F>;
  static NearPoints<S::lattice, S::width> table;
  static const bool filled = [] {
    for (int at = 0; at < S::lattice; ++at) table.template fill<F>(at);
    return true;
  }();
  (void)filled;
  return table;
}

// A block of a grid format: values without their signs, divided by `unit`.
template <class F>
struct GridSearch {
  using S = GridShape<F>;
  static constexpr Grid grid = F::codes;
  static constexpr int width = S::width, tuples = F::group / width, groups = F::block / F::group;
  static constexpr int shifts = grid.shift.used ? 2 : 1, times = grid.shift.used ? 8 : 1;
  static constexpr int sharing = grid.shift.used ? grid.shift_every / width : 1;  // tuples that share a shift
  static constexpr float high = static_cast<float>(-grid.low);
  static constexpr float int_low = F::scale.ints.low(), int_high = F::scale.ints.high(), step = F::scale.ints.times;

  // The point of a tuple, and the sum of weight * error^2.
  struct Tuple {
    int number;
    float error;
  };
  // Those of a group.
  struct Points {
    float error;
    uint16_t number[tuples];
    uint8_t shift[tuples];
  };
  // Sums of weight times code^2 and value * code.
  struct Sums {
    float qq, xq;
  };

  alignas(64) float y[F::block], w[F::block];
  float unit, back;
  const NearPoints<S::lattice, width>& near = near_points<F>();

  // Magnitudes in place of values; returns the signs of eight of them. If their number must be even, the value whose sign
  // costs least to change keeps a magnitude below 0.
  int take_signs(float* v, const float* weight) const {
    int bits = 0, cheapest = 0;
    float least_cost = 0;
    for (int i = 0; i < 8; ++i) {
      const float cost = weight[i] * (v[i] * v[i]);
      if (i == 0 || cost < least_cost) {
        least_cost = cost;
        cheapest = i;
      }
      bits |= (v[i] < 0) << i;
      v[i] = v[i] < 0 ? -v[i] : v[i];
    }
    if (grid.signs.bits() == 7 && __builtin_popcount(static_cast<unsigned>(bits)) % 2) {
      bits ^= 1 << cheapest;
      v[cheapest] = -v[cheapest];
    }
    return bits;
  }

  // The lattice points that a group's values are nearest to, where 1 / scale is `inverse`.
  static FEWBIT_INLINE void round_to_lattice(const float* v, float inverse, int shift, int* out) {
    static constexpr Lane power = [] {
      Lane out = {};
      for (int i = 0, p = 1; i < kWideLanes; ++i) {
        out.v[i] = static_cast<float>(p);
        p = (i + 1) % width ? p * S::levels : 1;
      }
      return out;
    }();
    for (int first = 0; first < F::group; first += kWideLanes) {
      const Wide t = load_wide(v + first) * splat(inverse);
      Wide digits = splat(0);
      for (int m = 0; m + 1 < S::levels; ++m) {
        const float middle = static_cast<float>(F::levels[m] + F::levels[m + 1]) * 0.5f * static_cast<float>(times);
        digits = digits + select(t >= splat(middle + static_cast<float>(shift)), load_wide(power.v), splat(0));
      }
      const Wholes places = truncated(digits);
      int32_t place[kWideLanes];
      std::memcpy(place, &places, sizeof place);
      for (int i = 0; i < kWideLanes; i += width) {
        int at = 0;
        for (int j = 0; j < width; ++j) at += place[i + j];
        out[(first + i) / width] = at;
      }
    }
  }

  FEWBIT_INLINE Tuple nearest_point(const float* v, const float* weight, float scale, int shift, int at) const {
    const Wide s = splat(scale), apart = splat(static_cast<float>(shift));
    Wide error = splat(0);
    for (int i = 0; i < width; ++i) {
      Wide q = load_bytes(near.level[at][i]);
      if constexpr (grid.shift.used > 0) q = q * splat(times) + apart;
      const Wide r = splat(v[i]) - s * q, e = splat(weight[i]) * (r * r);
      error = i == 0 ? e : error + e;
    }
    const int lane = least_lane_of_numbers(error);
    return {near.number[at][lane], lane_of(error, lane)};
  }

  Sums sums(int group, const Points& found) const {
    Sums out;
    for (int t = 0; t < tuples; ++t) {
      const float *v = y + group * F::group + t * width, *weight = w + group * F::group + t * width;
      const int shift = shifts == 1 ? 0 : 1 - 2 * found.shift[t];
      float qq = 0, xq = 0;
      for (int i = 0; i < width; ++i) {
        const float q = static_cast<float>(F::points.values[found.number[t]][i] * times + shift), wq = weight[i] * q;
        qq = i == 0 ? wq * q : qq + wq * q;
        xq = i == 0 ? wq * v[i] : xq + wq * v[i];
      }
      out.qq = t == 0 ? qq : out.qq + qq;
      out.xq = t == 0 ? xq : out.xq + xq;
    }
    return out;
  }

  __attribute__((noinline)) void measure(int group, float scale, Points& out) const {
    const float *v = y + group * F::group, *weight = w + group * F::group;
    const float inverse_scale = inverse(scale);
    Tuple found[shifts][tuples];
    for (int k = 0; k < shifts; ++k) {
      const int shift = shifts == 1 ? 0 : 1 - 2 * k;
      int at[tuples];
      round_to_lattice(v, inverse_scale, shift, at);
      for (int t = 0; t < tuples; ++t) {
        found[k][t] = nearest_point(v + t * width, weight + t * width, scale, shift, at[t]);
      }
    }
    for (int first = 0; first < tuples; first += sharing) {
      int best = 0;
      if constexpr (shifts == 2) {
        float total[2] = {found[0][first].error, found[1][first].error};
        for (int t = first + 1; t < first + sharing; ++t) {
          for (int k = 0; k < 2; ++k) total[k] += found[k][t].error;
        }
        best = total[1] < total[0];
      }
      for (int t = first; t < first + sharing; ++t) {
        const Tuple& one = found[best][t];
        out.number[t] = static_cast<uint16_t>(one.number);
        out.shift[t] = static_cast<uint8_t>(best);
        out.error = t == 0 ? one.error : out.error + one.error;
      }
    }
  }

  // The best scale of a group by itself.
  float search_scale(int group) const {
    constexpr float least = F::reach.least, spread = (F::reach.most - F::reach.least) / (kGridStarts - 1);
    float top = 0;
    for (int i = 0; i < F::group; ++i) {
      const float a = magnitude(y[group * F::group + i]);
      top = a > top ? a : top;
    }
    top = top / high;
    float scale = top * least;
    Points best, other;
    measure(group, scale, best);
    for (int i = 1; i < kGridStarts + kGridRefits; ++i) {
      float next = top * (least + static_cast<float>(i) * spread);
      if (i >= kGridStarts) {
        const Sums s = sums(group, best);
        next = ratio(s.xq, s.qq, scale);
      }
      measure(group, next, other);
      if (!(other.error < best.error)) continue;
      best = other;
      scale = next;
    }
    return scale;
  }

  FEWBIT_INLINE float keep(float v) const { return lane_of(kept<Real::f16>(splat(v), unit, back), 0); }

  // What a block stores.
  struct Block {
    float d, error;
    float ints[groups];
    Points points[groups];

    void total() {
      error = points[0].error;
      for (int j = 1; j < groups; ++j) error += points[j].error;
    }
  };

  void start(const float* scale, Block& best) const {
    constexpr float starts[] = {1.0f, 1.06f};
    float greatest = scale[0];
    for (int j = 1; j < groups; ++j) greatest = scale[j] > greatest ? scale[j] : greatest;
    Block now;
    for (int s = 0; s < 2; ++s) {
      now.d = keep(greatest / (int_high * F::scale.unit) * starts[s]);
      const float each = now.d * F::scale.unit, inverse_each = inverse(each);
      for (int j = 0; j < groups; ++j) {
        const float t = (scale[j] * inverse_each - int_low) * (1 / step);
        now.ints[j] = clip(nearest_int(t) * step + int_low, int_low, int_high);
        measure(j, each * now.ints[j], now.points[j]);
      }
      now.total();
      if (s == 0 || now.error < best.error) best = now;
    }
  }

  // The best of the neighbouring integers for each group.
  void try_neighbours(Block& now) const {
    const float each = now.d * F::scale.unit;
    Points other;
    for (int j = 0; j < groups; ++j) {
      measure(j, each * now.ints[j], now.points[j]);
      const float given = now.ints[j];
      for (const float move : {-step, step}) {
        const float next = clip(given + move, int_low, int_high);
        measure(j, each * next, other);
        if (!(other.error < now.points[j].error)) continue;
        now.points[j] = other;
        now.ints[j] = next;
      }
    }
    now.total();
  }

  // The float that suits the integers and points best.
  void refit(Block& now) const {
    float aa = 0, ax = 0;
    for (int j = 0; j < groups; ++j) {
      const float a = now.ints[j] * F::scale.unit;
      const Sums s = sums(j, now.points[j]);
      aa = j == 0 ? a * a * s.qq : aa + a * a * s.qq;
      ax = j == 0 ? a * s.xq : ax + a * s.xq;
    }
    const float d = ratio(ax, aa, now.d);
    now.d = keep(d > 0 ? d : 0);
  }

  void run(uint8_t* out) {
    int signs[F::block / 8] = {};
    if constexpr (grid.signs.used > 0) {
      for (int i = 0; i < F::block / 8; ++i) signs[i] = take_signs(y + 8 * i, w + 8 * i);
    }
    float scale[groups];
    for (int j = 0; j < groups; ++j) scale[j] = search_scale(j);
    Block now, best;
    start(scale, now);
    for (int round = 0; round < kGridRounds; ++round) {
      try_neighbours(now);
      if (round == 0 || now.error < best.error) best = now;
      if (round < kGridRounds - 1) refit(now);
    }
    write(best, signs, out);
  }

  void write(const Block& best, const int* signs, uint8_t* out) const {
    if constexpr (F::scale.bits.used > 0)
      write_int(F::scale.bits, out, 0, f32_to_f16(best.d * unit));
    else
      write_real(F::scale.real, out + F::scale.at, best.d * unit);
    for (int j = 0; j < groups; ++j) {
      write_int(F::scale.ints, out, j, static_cast<int>(best.ints[j]));
      for (int t = 0; t < tuples; ++t) {
        const int at = j * tuples + t;
        write_int(grid.index, out, at, best.points[j].number[t]);
        if constexpr (grid.shift.used > 0) {
          if (at % sharing == 0) write_int(grid.shift, out, at / sharing, best.points[j].shift[t]);
        }
      }
    }
    if constexpr (grid.signs.used > 0) {
      for (int i = 0; i < F::block / 8; ++i) write_int(grid.signs, out, i, signs[i] & ((1 << grid.signs.bits()) - 1));
    }
  }
};

}  // namespace encoding
