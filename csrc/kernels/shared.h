// The search where a block shares a float, or two, and each group multiplies it by small integers of its own:
// src/fewbit/formats/shared.py in native code.

namespace encoding {

constexpr int kSharedRounds = 3, kMaxGroups = 16;

// The floats that a block shares, and the integers that its groups multiply them by.
struct Shared {
  float d, dmin, scale[kMaxGroups], offset[kMaxGroups];
};

template <class F>
struct SharedSearch {
  using T = Levels<F>;
  static constexpr int groups = F::block / F::group;
  static constexpr float low = F::scale.ints.used ? F::scale.ints.low() : 0;
  static constexpr float high = F::scale.ints.used ? F::scale.ints.high() : 0;
  static constexpr float top = F::offset.present && F::offset.ints.used ? F::offset.ints.high() : 0;
  static constexpr Lane steps = {0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6, -7, 7, 8};
  static constexpr Lane scale_steps = {0, -1, 1, 2, 0, -1, 1, 2, 0, -1, 1, 2, 0, -1, 1, 2};
  static constexpr Lane offset_steps = {0, 0, 0, 0, -1, -1, -1, -1, 1, 1, 1, 1, 2, 2, 2, 2};

  const Group* g;
  float unit, back;
  float error[kMaxGroups], q[kMaxGroups], qq[kMaxGroups], xq[kMaxGroups];  // of the integers that are best now

  FEWBIT_INLINE Wide keep(const Wide& v) const { return kept<F::scale.real>(v, unit, back); }
  FEWBIT_INLINE float keep(float v) const { return lane_of(keep(splat(v)), 0); }
  static FEWBIT_INLINE Fit fit(const Wide& d, const Wide& dmin, const Wide& scale, const Wide& offset) {
    return {d * scale, splat(0) - dmin * offset, splat(T::low), splat(T::high)};
  }

  void start(const Choice* found, Shared& out) const {
    constexpr float first = 0.95f, width = (1.1f - 0.95f) / (F::offset.present ? 3.0f : 7.0f);
    float greatest = found[0].scale, deepest = -found[0].offset;
    for (int j = 1; j < groups; ++j) {
      if (magnitude(found[j].scale) > magnitude(greatest)) greatest = found[j].scale;
      deepest = -found[j].offset > deepest ? -found[j].offset : deepest;
    }
    Wide d, dmin = splat(0);
    if constexpr (F::offset.present) {
      static constexpr Lane a = lanes_from(first, width, 4, 1), b = lanes_from(first, width, 4, 4);
      d = keep(splat(greatest / high) * load_wide(a.v));
      dmin = keep(splat(deepest / top) * load_wide(b.v));
    } else {
      static constexpr Lane a = lanes_from(first, width, 8, 1), number = lanes_from(0, 1, kWideLanes, 1);
      const Wide end = select(load_wide(number.v) < splat(8), splat(greatest / low), splat(greatest / high));
      d = keep(end * load_wide(a.v));
    }
    Wide scale[groups], offset[groups], total = splat(0);
    for (int j = 0; j < groups; ++j) {
      scale[j] = clip(nearest_int(splat(found[j].scale) * inverse(d)), low, high);
      offset[j] = clip(nearest_int(splat(-found[j].offset) * inverse(dmin)), 0, top);
      Sums s;
      measure<F>(g[j], fit(d, dmin, scale[j], offset[j]), s);
      total = total + s.error;
    }
    const int lane = least_lane(total);
    out.d = lane_of(d, lane);
    out.dmin = lane_of(dmin, lane);
    for (int j = 0; j < groups; ++j) {
      out.scale[j] = lane_of(scale[j], lane);
      out.offset[j] = lane_of(offset[j], lane);
    }
  }

  // The best of sixteen neighbouring integers for each group; returns the error of the block.
  float neighbours(Shared& now) {
    float total = 0;
    for (int j = 0; j < groups; ++j) {
      Wide scale, offset = splat(0);
      if constexpr (F::offset.present) {
        scale = clip(splat(now.scale[j]) + load_wide(scale_steps.v), low, high);
        offset = clip(splat(now.offset[j]) + load_wide(offset_steps.v), 0, top);
      } else {
        scale = clip(splat(now.scale[j]) + load_wide(steps.v), low, high);
      }
      Sums s;
      measure<F>(g[j], fit(splat(now.d), splat(now.dmin), scale, offset), s);
      const int lane = least_lane(s.error);
      now.scale[j] = lane_of(scale, lane);
      now.offset[j] = lane_of(offset, lane);
      error[j] = lane_of(s.error, lane);
      const float middle = lane_of(s.middle, lane), rest = lane_of(s.q, lane);
      q[j] = rest + middle * g[j].sw;
      qq[j] = lane_of(s.qq, lane) + middle * (rest + q[j]);
      xq[j] = lane_of(s.xq, lane) + middle * g[j].rest + g[j].center * q[j];
      total += error[j];
    }
    return total;
  }

  // The floats that suit the integers and codes best.
  void refit_floats(Shared& now) const {
    float aa = 0, ax = 0, ab = 0, bb = 0, bx = 0;
    for (int j = 0; j < groups; ++j) {
      const float a = now.scale[j], b = now.offset[j];
      aa += a * a * qq[j];
      ax += a * xq[j];
      ab += a * b * q[j];
      bb += b * b * g[j].sw;
      bx += b * g[j].sx;
    }
    const float alone = ratio(ax, aa, now.d);
    if constexpr (F::offset.present) {
      const float spread = aa * bb - ab * ab;
      const float dmin = ratio(ax * ab - bx * aa, spread, now.dmin);
      now.d = keep(ratio(ax * bb - bx * ab, spread, alone));
      now.dmin = keep(dmin > 0 ? dmin : 0);
    } else {
      now.d = keep(alone);
    }
  }

  void run(const Choice* found, Shared& best) {
    Shared now;
    start(found, now);
    float least_error = __builtin_inff();
    best = now;
    for (int round = 0; round < kSharedRounds; ++round) {
      const float total = neighbours(now);
      if (total < least_error) {
        best = now;
        least_error = total;
      }
      if (round < kSharedRounds - 1) refit_floats(now);
    }
  }
};

}  // namespace encoding
