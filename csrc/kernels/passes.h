// Passes over a row of logits, in plain loops over lanes that compilers vectorize. See passes.h.

constexpr float kInfinity = __builtin_inff(), kMost = __FLT_MAX__;

// The next chunk; if the row ends before it does, a copy that goes on with -infinity.
static inline const float* chunk_of(const float* x, size_t n, size_t at, float* copy) {
  if (n - at >= kChunk) return x + at;
  for (size_t i = 0; i < kChunk; ++i) copy[i] = i < n - at ? x[at + i] : -kInfinity;
  return copy;
}

static Extent scan(const float* x, size_t n, float* groups) {
  alignas(64) float copy[kChunk], most[kLanes], least[kLanes];
  alignas(64) int32_t bad[kLanes];
  for (size_t l = 0; l < kLanes; ++l) least[l] = kMost, bad[l] = 0;
  float top = -kInfinity;
  for (size_t at = 0; at < n; at += kChunk, groups += kLanes) {
    const float* from = chunk_of(x, n, at, copy);
    for (size_t l = 0; l < kLanes; ++l) most[l] = -kInfinity;
    for (size_t i = 0; i < kChunk; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float v = from[i + l], finite = v >= -kMost ? v : kMost;
        most[l] = v > most[l] ? v : most[l];
        least[l] = finite < least[l] ? finite : least[l];
        bad[l] |= v <= kMost ? 0 : 1;
      }
    }
    for (size_t l = 0; l < kLanes; ++l) groups[l] = most[l];
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) most[l] = most[l + half] > most[l] ? most[l + half] : most[l];
    }
    top = most[0] > top ? most[0] : top;
  }
  Extent out{top, kMost, true};
  for (size_t l = 0; l < kLanes; ++l) {
    out.lowest = least[l] < out.lowest ? least[l] : out.lowest;
    out.valid = out.valid && !bad[l];
  }
  return out;
}

static double total(const float* x, size_t n, const WeightScale& scale) {
  alignas(64) float copy[kChunk], sums[kLanes];
  const float top = scale.top, by = scale.by;
  double out = 0;
  for (size_t at = 0; at < n; at += kChunk) {
    const float* from = chunk_of(x, n, at, copy);
    for (size_t l = 0; l < kLanes; ++l) sums[l] = 0;
    for (size_t i = 0; i < kChunk; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) sums[l] += exp_of((from[i + l] - top) * by);
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    out += sums[0];
  }
  return out;
}

// Keys of the logits that are wanted.
template <class Test>
static inline size_t keys_of(const float* x, size_t n, size_t most, Key* out, Test test) {
  alignas(64) uint32_t passes[kLanes], parts[kLanes];
  alignas(64) float copy[kLanes];
  size_t count = 0;
  for (size_t at = 0; at < n && count <= most; at += kLanes) {
    const size_t some = n - at < kLanes ? n - at : kLanes;
    const float* from = x + at;
    if (some < kLanes) {
      for (size_t l = 0; l < kLanes; ++l) copy[l] = l < some ? from[l] : -kInfinity;
      from = copy;
    }
    uint32_t any = 0;
    for (size_t l = 0; l < kLanes; ++l) any |= test(from[l]);
    if (!any) continue;
    for (size_t l = 0; l < kLanes; ++l) passes[l] = test(from[l]), parts[l] = ordered(from[l]);
    for (size_t l = 0; l < some; ++l) {
      out[count] = static_cast<Key>(parts[l]) << 32 | (kLastId - static_cast<uint32_t>(at + l));
      count += passes[l];
    }
  }
  return count;
}

static size_t collect(const float* x, size_t n, float least, size_t most, Key* out) {
  return keys_of(x, n, most, out, [=](float v) { return v >= least; });
}

// The bucket as a number that is not yet rounded; kBuckets for what is in none. Never anything else, even if someone
// writes to the row meanwhile.
static inline float place_of(float x, float top, float steps) {
  const float place = (top - x) * steps, positive = place > 0 ? place : 0;
  return positive < kBuckets ? positive : kBuckets;
}

static size_t tally(const float* x, size_t n, const WeightScale& scale, float likely, Tally* out) {
  alignas(64) float copy[kChunk], weights[kLanes], lane[kLanes];
  alignas(64) int32_t buckets[kLanes], counts[kLanes] = {};
  const auto [top, by, steps] = scale;
  for (size_t l = 0; l < kLanes; ++l) lane[l] = static_cast<float>(l);
  *out = {};
  for (size_t at = 0; at < n; at += kChunk) {
    const float* from = chunk_of(x, n, at, copy);
    for (size_t i = 0; i < kChunk; i += kLanes) {
      int any = 0;
      for (size_t l = 0; l < kLanes; ++l) {
        weights[l] = exp_of((from[i + l] - top) * by);
        const float place = place_of(from[i + l], top, steps);
        any |= place < kBuckets;
        buckets[l] = static_cast<int32_t>(place + (place < kBuckets ? 0.0f : 1.0f) * lane[l]);
        counts[l] += weights[l] >= likely;
      }
      for (size_t l = 0; any && l < kLanes; l += 2) {
        for (size_t c = 0; c < 2; ++c) {
          out->sums[c][buckets[l + c]] += static_cast<double>(weights[l + c]);
          out->counts[c][buckets[l + c]] += 1;
        }
      }
    }
  }
  for (size_t b = 0; b < kBuckets; ++b) {
    out->sums[0][b] += out->sums[1][b];
    out->counts[0][b] += out->counts[1][b];
  }
  size_t all = 0;
  for (size_t l = 0; l < kLanes; ++l) all += static_cast<size_t>(counts[l]);
  return all;
}

static size_t members(const float* x, size_t n, const WeightScale& scale, size_t bucket, Key* out) {
  const float first = static_cast<float>(bucket), end = first + 1, top = scale.top, steps = scale.steps;
  return keys_of(x, n, n, out, [=](float v) {
    const float place = place_of(v, top, steps);
    return place >= first && place < end;
  });
}

constexpr Passes passes = {scan, total, collect, tally, members};
