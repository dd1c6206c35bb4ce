// How a scale follows from the values where nothing is searched: the arithmetic of the gguf package where that encodes
// the format, of ggml where only that does.

namespace encoding {

inline uint32_t greatest_bits(const float* x, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t a = f32_bits(x[i]) & 0x7fffffffu;
    most = a > most ? a : most;
  }
  return most;
}
inline float greatest(const float* x, size_t n) { return bits_f32(greatest_bits(x, n)); }

// The first of those with the greatest magnitude.
inline float of_greatest_magnitude(const float* x, size_t n) {
  const uint32_t most = greatest_bits(x, n);
  for (size_t i = 0; i < n; ++i) {
    if ((f32_bits(x[i]) & 0x7fffffffu) == most) return x[i];
  }
  return 0;
}

struct Ends {
  float least, most;
};
// Compared as integers that rise with the floats.
inline Ends ends(const float* x, size_t n) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (size_t i = 0; i < n; ++i) {
    int32_t b = static_cast<int32_t>(f32_bits(x[i]));
    b ^= b >> 31 & INT32_MAX;
    low = b < low ? b : low;
    high = b > high ? b : high;
  }
  low ^= low >> 31 & INT32_MAX;
  high ^= high >> 31 & INT32_MAX;
  return {bits_f32(static_cast<uint32_t>(low)), bits_f32(static_cast<uint32_t>(high))};
}

// The power of two that brings v near 1.
inline float unit_of(float v) {
  const uint32_t exponent = f32_bits(v) >> 23;
  return bits_f32((exponent < 1 ? 1 : exponent > 253 ? 253 : exponent) << 23);
}

// Truncated and kept in range; 0 where t is not finite.
template <class T>
static FEWBIT_INLINE int number(T t, T low, T high) {
  t = t - t == 0 ? t : T{0};
  t = t < low ? low : t;
  return static_cast<int>(t > high ? high : t);
}

// Rounded, half away from 0: what is added is the number just below a half, so that nothing below a half is rounded up.
template <class T>
static FEWBIT_INLINE int rounded_number(T t, T low, T high) {
  constexpr T half = sizeof(T) == 4 ? T(0.49999997f) : T(0.49999999999999994);
  return number(t < 0 ? t - half : t + half, low, high);
}

// What a rule finds for a block or a group.
struct Found {
  float scale = 0, offset = 0;
  int zero = 0;
};

inline int log2_floor(float v) {
  int exponent = static_cast<int>(f32_bits(v) >> 23);
  uint32_t mantissa = f32_bits(v) & 0x7fffffu;
  if (exponent == 0) {
    const int shift = __builtin_clz(mantissa) - 8;
    mantissa = mantissa << shift & 0x7fffffu;
    exponent = 1 - shift;
  }
  exponent -= 126;  // v = m * 2^exponent, m from 1/2 up; log2 in f32 rounds up to it just below it
  constexpr uint32_t reach_of[] = {0, 0, 1, 2, 5, 11, 22, 44, 88};
  int digits = 0;
  for (int n = exponent > 0 ? exponent - 1 : -exponent; n > 0; n /= 2) ++digits;
  return exponent - (0x800000u - mantissa > reach_of[digits]);
}

// The rules for blocks, with the arithmetic of the gguf package. `n` values are the block's, the rest is padding.
template <class F>
struct BlockRule {
  static constexpr int size = F::block;
  static constexpr float low = Levels<F>::is_trits ? -1 : Levels<F>::ints().low(), high = Levels<F>::high;

  static FEWBIT_INLINE float inverse_of(float d) { return d == 0 ? 0 : 1 / d; }

  static FEWBIT_INLINE Found run(const float* x, int n, uint8_t* codes) {
    if constexpr (F::rule == Rule::absmax)
      return absmax(x, codes);
    else if constexpr (F::rule == Rule::absmax_signed)
      return absmax_signed(x, codes);
    else if constexpr (F::rule == Rule::minmax)
      return minmax(x, codes);
    else if constexpr (F::rule == Rule::mean)
      return mean(x, n, codes);
    else if constexpr (F::rule == Rule::mxfp4)
      return mxfp4(x, codes);
    else
      return q8_k(x, codes);
  }
  static FEWBIT_INLINE Found absmax(const float* x, uint8_t* codes) {
    constexpr int zero = Levels<F>::is_trits ? 1 : Levels<F>::ints().zero;
    const float d = greatest(x, size) / (-low < high ? -low : high), back = inverse_of(d);
    for (int i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>(rounded_number(x[i] * back, low, high) + zero);
    return {d};
  }
  static FEWBIT_INLINE Found absmax_signed(const float* x, uint8_t* codes) {
    const float d = of_greatest_magnitude(x, size) / low, back = inverse_of(d);
    for (int i = 0; i < size; ++i) {
      codes[i] = static_cast<uint8_t>(number(x[i] * back + (0.5f - low), 0.0f, high - low));
    }
    return {d};
  }
  static FEWBIT_INLINE Found minmax(const float* x, uint8_t* codes) {
    const Ends e = ends(x, size);
    const float d = (e.most - e.least) / high, back = inverse_of(d);
    for (int i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>(number((x[i] - e.least) * back + 0.5f, 0.0f, high));
    return {d, e.least};
  }
  static FEWBIT_INLINE Found mean(const float* x, int n, uint8_t* codes) {
    float total = 0;
    for (int i = 0; i < n; ++i) total += bits_f32(f32_bits(x[i]) & 0x7fffffffu);
    for (int i = 0; i < size; ++i) codes[i] = x[i] >= 0;
    return {total / static_cast<float>(n)};
  }
  static FEWBIT_INLINE Found mxfp4(const float* x, uint8_t* codes) {
    const float most = greatest(x, size);
    const int e = most > 0 ? log2_floor(most) + 125 : 0;
    const float d = e8m0_half(static_cast<uint8_t>(e < 0 ? 0 : e > 254 ? 254 : e));
    for (int i = 0; i < size; ++i) {
      const float a = bits_f32(f32_bits(x[i]) & 0x7fffffffu);
      int code = 0;  // of two equally near levels the smaller
      for (int c = 1; c < 8; ++c) code += a > (F::codebook.values[c] + F::codebook.values[c - 1]) * 0.5f * d;
      codes[i] = static_cast<uint8_t>(code + (x[i] < 0 && code > 0 ? 8 : 0));
    }
    return {d};
  }
  static FEWBIT_INLINE Found q8_k(const float* x, uint8_t* codes) {
    const float most = of_greatest_magnitude(x, size);
    float scale = most == 0 ? 0 : -127 / most;
    scale = scale <= kGreatest && scale >= -kGreatest ? scale : 0;
    for (int i = 0; i < size; ++i) {
      const float t = (clip(x[i] * scale, -127, 127) + kMagic) - kMagic;
      codes[i] = static_cast<uint8_t>(static_cast<int>(t));
    }
    return {scale == 0 ? 0 : 1 / scale};
  }
};

// The rules for groups of a row whose fields lie apart: in double, with the scale as it is stored.
template <class F>
struct RowRule {
  static constexpr float low = Levels<F>::ints().low(), high = Levels<F>::high;

  static FEWBIT_INLINE float kept(double scale) {
    return lane_of(stored<F::scale.real>(splat(static_cast<float>(scale))), 0);
  }
  static FEWBIT_INLINE double divided(double x, float scale) { return x / (scale != 0 ? scale : 1); }

  static Found find(const float* x, size_t n) {
    const Ends e = ends(x, n);
    const double least = e.least, most = e.most, width = high - low;
    if constexpr (F::rule == Rule::absmax) return {kept(static_cast<double>(greatest(x, n)) / high)};
    if constexpr (F::rule == Rule::minmax) return {kept((most - least) / width), e.least};
    if constexpr (F::rule == Rule::zero_point) {
      constexpr double zero_low = F::offset.ints.low(), zero_high = F::offset.ints.high();
      const double up = most / (high - zero_low), down = least / (low - zero_high);
      double scale = up > down ? up : down;
      scale = (most - least) / width > scale ? (most - least) / width : scale;
      Found out = {kept(scale + 0.0)};  // no -0
      out.zero = rounded_number(low - divided(least, out.scale), zero_low, zero_high);
      return out;
    }
    return {};
  }
  static FEWBIT_INLINE int code(float x, const Found& f) {
    if constexpr (F::rule == Rule::minmax) {
      return number(divided(static_cast<double>(x) - f.offset, f.scale) + 0.5, 0.0, static_cast<double>(high));
    } else {
      constexpr double far = 1 << 20;
      const int q = rounded_number(divided(x, f.scale), -far, far) + f.zero;
      const int above = q < static_cast<int>(low) ? static_cast<int>(low) : q;
      return above > static_cast<int>(high) ? static_cast<int>(high) : above;
    }
  }
};

}  // namespace encoding
