// Finds the scales, and offsets, that lose least: src/fewbit/formats/search.py in native code, with the same arithmetic
// in the same order, so that the bytes are the same. Sixteen candidates run side by side, one in each lane.

namespace encoding {

constexpr float kMagic = 12582912.0f;  // adding it rounds to an integer
constexpr float kGreatest = 3.4028235e38f, kTiny = 1e-30f;
constexpr float kLeastWeight = 0x1p-40f;  // beside the greatest of the block, which is 1 to 2
constexpr float kTooMuch = 0x1p40f;       // for a scale of values near 1
constexpr int kRounds = 3;

// The numbers that the codes of a format stand for, and what kind of offset it has.
template <class F>
struct Levels {
  static constexpr bool is_trits = F::kind == Kind::trits, has_book = F::codebook.used > 0;

  static constexpr Ints ints() {
    if constexpr (is_trits)
      return Ints{};
    else
      return F::codes;
  }
  static constexpr float high = is_trits ? 1.0f : has_book ? F::codebook.high() : ints().high();
  static constexpr float low = is_trits           ? -1.0f
                               : has_book         ? F::codebook.low()
                               : ints().is_signed ? -high
                                                  : ints().low();
  static constexpr float step = is_trits ? 1.0f : ints().times;
  static constexpr int bits = [] {
    int count = has_book ? F::codebook.used : static_cast<int>((high - low) / step) + 1, n = 0;
    for (--count; count > 0; count /= 2) ++n;
    return n;
  }();
  static constexpr bool both_signs = -low != high && bits < 8;
  static constexpr bool zero_point = F::offset.present && F::offset.at == F::scale.at;
  static constexpr bool free_offset = F::offset.present && !zero_point;
  static constexpr bool below = F::offset_sign < 0;
  static constexpr bool shares = F::scale.ints.used > 0;

  // The codebook in rising order, each number once.
  struct Book {
    int used = 0;
    float values[16] = {};
  };
  static constexpr Book book = [] {
    Book out;
    for (int v = -128; v < 128; ++v) {
      for (int i = 0; i < F::codebook.used; ++i) {
        if (F::codebook.values[i] != v) continue;
        out.values[out.used++] = static_cast<float>(v);
        break;
      }
    }
    return out;
  }();
};

// Some values: already brought near 1, or in the row as they are (`back` brings them there).
struct Group {
  const float *x, *w;
  size_t n;
  float back, weight_back;
  bool is_raw;
  float sw, sx, sxx, least, most;
  float center, rest;  // with a free offset, sums are of values less their mean; the sum of weight * (value - center)
};

struct Fit {
  Wide scale, offset, low, high;
};

// Of weight times error^2, code, code^2, value * code. Codes are counted from `middle`, values from the center.
struct Sums {
  Wide error, q, qq, xq, middle;
};

static FEWBIT_INLINE Wide nearest_int(const Wide& t) { return (t + splat(kMagic)) - splat(kMagic); }
static FEWBIT_INLINE Wide clip(const Wide& t, float low, float high) { return least(most(t, splat(low)), splat(high)); }

static FEWBIT_INLINE Wide inverse(const Wide& scale) {
  const Wholes usable = magnitude(scale) > splat(kTiny);
  return select(usable, splat(1) / select(usable, scale, splat(1)), splat(0));
}
static FEWBIT_INLINE Wide ratio(const Wide& a, const Wide& b, const Wide& otherwise) {
  const Wholes usable = b > splat(kTiny);
  return select(usable, a / select(usable, b, splat(1)), otherwise);
}
inline float magnitude(float v) { return v < 0 ? -v : v; }
inline float inverse(float scale) { return scale > kTiny || scale < -kTiny ? 1 / scale : 0; }
inline float ratio(float a, float b, float otherwise) { return b > kTiny ? a / b : otherwise; }
inline float nearest_int(float t) { return (t + kMagic) - kMagic; }
inline float clip(float t, float low, float high) { return t < low ? low : t > high ? high : t; }

// The level nearest to each t. Integers are kept in range by their bits, which rise with them.
template <class F>
static FEWBIT_INLINE Wide nearest(const Wide& t, const Wide& low, const Wide& high) {
  using T = Levels<F>;
  if constexpr (T::has_book) {
    Wide q = splat(T::book.values[0]);
    for (int i = 1; i < T::book.used; ++i) {
      const Wide middle = splat((T::book.values[i] + T::book.values[i - 1]) * 0.5f);
      q = select(t >= middle, splat(T::book.values[i]), q);
    }
    return q;
  } else if constexpr (T::step == 1) {
    const Wide magic = splat(kMagic);
    return from_bits(least(most(bits_of(t + magic), bits_of(low + magic)), bits_of(high + magic))) - magic;
  } else {
    const Wide steps = (least(most(t, low), high) - low) * splat(1 / T::step);
    return nearest_int(steps) * splat(T::step) + low;
  }
}

// 256 values of a group, or what is left of it.
struct Chunk {
  const float *x, *w;
  int n;
  alignas(64) float xs[kBlockK], ws[kBlockK];

  FEWBIT_INLINE void load(const Group& g, size_t first) {
    n = static_cast<int>(g.n - first < kBlockK ? g.n - first : kBlockK);
    x = g.x + first;
    w = g.w + first;
    if (!g.is_raw) return;
    for (int i = 0; i < n; ++i) xs[i] = x[i] * g.back;
    for (int i = 0; i < n; ++i) {
      const float v = g.w ? w[i] * g.weight_back : 1.0f;
      ws[i] = v > kLeastWeight ? v : kLeastWeight;
    }
    x = xs;
    w = ws;
  }
};

template <class F>
void prepare(Group& g) {
  g.sw = g.sx = g.sxx = g.center = g.rest = 0;
  g.least = kGreatest;
  g.most = -kGreatest;
  Chunk c;
  for (size_t first = 0; first < g.n; first += kBlockK) {
    c.load(g, first);
    float sw = 0, sx = 0, sxx = 0;
    for (int i = 0; i < c.n; ++i) {
      const float wx = c.w[i] * c.x[i];
      sw += c.w[i];
      sx += wx;
      sxx += wx * c.x[i];
      g.least = c.x[i] < g.least ? c.x[i] : g.least;
      g.most = c.x[i] > g.most ? c.x[i] : g.most;
    }
    g.sw += sw;
    g.sx += sx;
    g.sxx += sxx;
  }
  g.least += 0.0f;  // no -0
  g.most += 0.0f;
  if constexpr (!Levels<F>::free_offset) return;
  g.center = ratio(g.sx, g.sw, 0);
  for (size_t first = 0; first < g.n; first += kBlockK) {
    c.load(g, first);
    float rest = 0;
    for (int i = 0; i < c.n; ++i) rest += c.w[i] * (c.x[i] - g.center);
    g.rest += rest;
  }
}

// The error of each candidate with the codes nearest to the values, and the sums for `refit`.
template <class F>
__attribute__((noinline)) void measure(const Group& g, const Fit& candidates, Sums& out) {
  using T = Levels<F>;
  const Fit fit = candidates;
  const Wide back = inverse(fit.scale), zero = splat(0);
  const Wide low = T::zero_point ? fit.low : splat(T::low), high = T::zero_point ? fit.high : splat(T::high);
  const Wide middle = T::free_offset ? nearest<F>((splat(g.center) - fit.offset) * back, low, high) : zero;
  Sums total = {zero, zero, zero, zero, middle};
  Chunk c;
  for (size_t first = 0; first < g.n; first += kBlockK) {
    c.load(g, first);
    Wide error = zero, sq = zero, sqq = zero, sxq = zero;
    for (int i = 0; i < c.n; ++i) {
      const Wide x = splat(c.x[i]), w = splat(c.w[i]);
      const Wide y = T::free_offset ? x - fit.offset : x;
      const Wide q = nearest<F>(y * back, low, high);
      const Wide r = y - fit.scale * q;
      const Wide p = T::free_offset ? q - middle : q, wp = w * p;
      error = error + w * (r * r);
      if constexpr (T::free_offset) sq = sq + wp;
      sqq = sqq + wp * p;
      sxq = sxq + wp * (T::free_offset ? splat(c.x[i] - g.center) : x);
    }
    total = {total.error + error, total.q + sq, total.qq + sqq, total.xq + sxq, middle};
  }
  out = total;
}

// The scale and offset that suit the codes of `fit` best.
template <class F>
static FEWBIT_INLINE void refit(const Group& g, Fit& fit, const Sums& s) {
  using T = Levels<F>;
  if constexpr (T::free_offset) {
    const Wide sw = splat(g.sw), rest = splat(g.rest), center = splat(g.center), spread = sw * s.qq - s.q * s.q;
    const Wide scale = ratio(sw * s.xq - rest * s.q, spread, fit.scale);
    fit.offset = (ratio(rest * s.qq - s.q * s.xq, spread, splat(0)) - scale * s.middle) + center;
    if constexpr (T::below) {
      const Wide q = s.q + s.middle * sw, qq = s.qq + s.middle * (s.q + q);
      const Wide xq = s.xq + s.middle * rest + center * q;
      const Wholes above = fit.offset > splat(0);
      fit.scale = select(above, ratio(xq, qq, fit.scale), scale);
      fit.offset = select(above, splat(0), fit.offset);
    } else {
      fit.scale = scale;
    }
  } else {
    fit.scale = ratio(s.xq, s.qq, fit.scale);
  }
}

struct Lane {
  alignas(64) float v[kWideLanes];
};
constexpr Lane lanes_from(float first, float step, int times, int every) {  // first + l / every % times * step
  Lane out = {};
  for (int l = 0; l < kWideLanes; ++l) out.v[l] = first + static_cast<float>(l / every % times) * step;
  return out;
}

template <class F>
static FEWBIT_INLINE void as_zero_point(const Group& g, Fit& fit) {
  using T = Levels<F>;
  constexpr float zero_low = F::offset.ints.low(), zero_high = F::offset.ints.high();
  const float up = g.most / (T::high - zero_low), down = g.least / (T::low - zero_high);
  fit.scale = most(fit.scale, splat(up > down ? up : down));
  const Wide zero = clip(nearest_int(splat(T::low) - fit.offset * inverse(fit.scale)), zero_low, zero_high);
  fit = {fit.scale, splat(0), splat(T::low) - zero, splat(T::high) - zero};
}

// Both ends of the range cut; and from the bottom up with steps of other sizes, for values that lie on a grid.
template <class F>
static FEWBIT_INLINE void starts_with_offset(const Group& g, Fit& fit, Fit& other) {
  using T = Levels<F>;
  constexpr float share = kSearchCut[T::bits] / 3.0f, steps = T::high - T::low;
  constexpr bool below_zero = T::free_offset && T::below;
  static constexpr Lane above = lanes_from(0, share, 4, 1), under = lanes_from(0, share, 4, 4);
  static constexpr Lane sizes = lanes_from(steps - 2.0f, 0.25f, kWideLanes, 1);
  const float bottom = below_zero && g.least > 0 ? 0 : g.least;
  const Wide k_block = splat(g.most - bottom), low = splat(T::low), high = splat(T::high);
  Wide offset = splat(bottom) + load_wide(above.v) * k_block;
  if constexpr (below_zero) offset = least(offset, splat(0));
  fit = {(splat(g.most) - load_wide(under.v) * k_block - offset) / splat(steps), offset, low, high};
  other = {k_block / load_wide(sizes.v), splat(bottom), low, high};
  if constexpr (T::zero_point) {
    as_zero_point<F>(g, fit);
    as_zero_point<F>(g, other);
  }
}

template <class F>
static FEWBIT_INLINE void starts(const Group& g, Fit& fit) {
  using T = Levels<F>;
  constexpr Reach r = kSearchReach[T::bits];
  const float a = g.most / T::high, b = g.least / T::low, up = a > b ? a : b;
  fit = {splat(0), splat(0), splat(T::low), splat(T::high)};
  if constexpr (T::both_signs) {
    static constexpr Lane shrink = lanes_from(r.least, (r.most - r.least) / 7.0f, 8, 1);
    static constexpr Lane number = lanes_from(0, 1, kWideLanes, 1);
    const float c = g.most / -T::low, d = g.least / -T::high, down = c > d ? c : d;
    fit.scale = select(load_wide(number.v) < splat(8), splat(up), splat(-down)) * load_wide(shrink.v);
  } else {
    static constexpr Lane shrink = lanes_from(r.least, (r.most - r.least) / 15.0f, kWideLanes, 1);
    fit.scale = splat(up) * load_wide(shrink.v);
  }
}

// What is read back when v is stored; a search never stores an infinity, and 0 only for 0.
template <Real real>
static FEWBIT_INLINE Wide stored(const Wide& v) {
  if constexpr (real == Real::f16) {
    const Wide a = least(most(magnitude(v), splat(0x1p-24f)), splat(65504));
    // 1.5 * 2^13 times the power of two below a, at least 2^-14: adding it rounds to 11 bits.
    const Wholes power = most(bits_of(a) & splat_bits(0x7f800000), splat_bits(113 << 23)) + splat_bits(13 << 23);
    const Wide magic = from_bits(power) * splat(1.5f), rounded = (a + magic) - magic;
    const Wholes sign = bits_of(v) & splat_bits(INT32_MIN);
    return select(v == splat(0), splat(0), from_bits(bits_of(rounded) | sign));
  } else {
    return clip(v, -kGreatest, kGreatest);
  }
}

// The same for values that were divided by `unit`; 0 where they are far below what can be stored.
template <Real real>
static FEWBIT_INLINE Wide kept(const Wide& v, float unit, float back) {
  const Wide again = stored<real>(v * splat(unit)) * splat(back);
  return select(magnitude(again) > splat(kTooMuch), splat(0), again);
}

template <class F>
static FEWBIT_INLINE void settle(Fit& fit, float unit, float back) {
  fit.scale = kept<F::scale.real>(fit.scale, unit, back);
  if constexpr (Levels<F>::free_offset) fit.offset = kept<F::offset.real>(fit.offset, unit, back);
}

static FEWBIT_INLINE Fit select(const Wholes& where, const Fit& a, const Fit& b) {
  return {select(where, a.scale, b.scale), select(where, a.offset, b.offset), select(where, a.low, b.low),
          select(where, a.high, b.high)};
}
// Keeps the better one in each lane.
static FEWBIT_INLINE void better_of(Fit& fit, Sums& s, const Fit& other, const Sums& t) {
  const Wholes better = t.error < s.error;
  fit = select(better, other, fit);
  s = {select(better, t.error, s.error), select(better, t.q, s.q), select(better, t.qq, s.qq),
       select(better, t.xq, s.xq), select(better, t.middle, s.middle)};
}

// The scale, offset and range of codes that were found for a group.
struct Choice {
  float scale, offset, low, high;
};

static FEWBIT_INLINE Choice choice(const Fit& fit, int lane) {
  return {lane_of(fit.scale, lane), lane_of(fit.offset, lane), lane_of(fit.low, lane), lane_of(fit.high, lane)};
}

// Scales of 8 bits: sixteen neighbours of the one that spans all values.
template <class F>
Choice search_small_floats(const Group& g, float unit, float back) {
  using T = Levels<F>;
  constexpr int last = F::scale.real == Real::ue4m3 ? 126 : 254;
  const float a = g.most / T::high, b = g.least / T::low, up = (a > b ? a : b) * unit;
  uint8_t code = last;
  const int first = up > read_real(F::scale.real, &code) ? last + 1 : small_float_code(F::scale.real, up);
  Lane scale;
  for (int l = 0; l < kWideLanes; ++l) {
    const int c = first + 4 - l;
    code = static_cast<uint8_t>(c < 0 ? 0 : c > last ? last : c);
    scale.v[l] = read_real(F::scale.real, &code) * back;
    if (scale.v[l] > kTooMuch) scale.v[l] = 0;
  }
  const Fit fit = {load_wide(scale.v), splat(0), splat(T::low), splat(T::high)};
  Sums s;
  measure<F>(g, fit, s);
  return choice(fit, least_lane(s.error));
}

template <class F>
Choice search_group(const Group& g, float unit, float back) {
  if constexpr (F::scale.real == Real::e8m0 || F::scale.real == Real::ue4m3) {
    return search_small_floats<F>(g, unit, back);
  } else {
    constexpr bool is_final = !Levels<F>::shares;
    Fit fit;
    Sums s;
    if constexpr (F::offset.present) {
      Fit other;
      Sums t;
      starts_with_offset<F>(g, fit, other);
      if constexpr (is_final) {
        settle<F>(fit, unit, back);
        settle<F>(other, unit, back);
      }
      measure<F>(g, fit, s);
      measure<F>(g, other, t);
      better_of(fit, s, other, t);
    } else {
      starts<F>(g, fit);
      if constexpr (is_final) settle<F>(fit, unit, back);
      measure<F>(g, fit, s);
    }
    Fit best = fit;
    Wide error = s.error;
    for (int round = 1; round < kRounds; ++round) {
      refit<F>(g, fit, s);
      if constexpr (is_final) settle<F>(fit, unit, back);
      measure<F>(g, fit, s);
      const Wholes better = s.error < error;
      best = select(better, fit, best);
      error = select(better, s.error, error);
    }
    const int lane = least_lane(error);
    Choice out = choice(best, lane);
    if (g.sxx <= lane_of(error, lane)) out.scale = out.offset = 0;
    return out;
  }
}

}  // namespace encoding
