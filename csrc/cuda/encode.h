// Rows of floats -> packed rows as they lie in files, by the rule of the record: the operations of formats/encode.py in
// their order, the same bytes. A warp a group.
#pragma once
#include "repack.h"

namespace fewbit {

__device__ __forceinline__ double half_away(double t) {
  const double whole = floor(fabs(t));
  return copysign(whole + (fabs(t) - whole >= 0.5 ? 1.0 : 0.0), t);
}
__device__ __forceinline__ float half_away(float t) {
  const float whole = floorf(magnitude(t));
  return copysignf(whole + (magnitude(t) - whole >= 0.5f ? 1.0f : 0.0f), t);
}
// Truncated and kept in range; 0 where t is not finite.
template <class F>
__device__ __forceinline__ int in_range(F t, int low, int high) {
  if (!(t - t == 0)) return low > 0 ? low : high < 0 ? high : 0;
  return static_cast<int>(t < low ? low : t > high ? high : t);
}

template <class R>
__device__ __forceinline__ float stored_scale(double scale) {
  const float f = static_cast<float>(scale);
  return R::scale.real == Real::f16 ? f16_to_f32(f32_to_f16(f)) : f;
}

// What a group has in common: its scale, and its zero point.
struct Found {
  float scale = 0;
  int zero = 0;
};

template <class R>
__device__ __forceinline__ Found find_scale(float least, float most, float greatest, float signed_greatest) {
  constexpr int low = R::codes.low(), high = R::codes.high();
  if constexpr (R::rule == Rule::absmax_signed) {
    return {__fdiv_rn(signed_greatest, static_cast<float>(low)), 0};
  } else if constexpr (R::rule == Rule::absmax && R::placement == Placement::block) {
    return {__fdiv_rn(greatest, static_cast<float>(-low < high ? -low : high)), 0};
  } else if constexpr (R::rule == Rule::absmax) {
    return {stored_scale<R>(static_cast<double>(greatest) / high), 0};
  } else {
    static_assert(R::rule == Rule::zero_point);
    constexpr int zero_low = R::offset.ints.low(), zero_high = R::offset.ints.high();
    const double a = least, b = most;
    const double scale = fmax((b - a) / (high - low), fmax(b / (high - zero_low), a / (low - zero_high)));
    const float kept = stored_scale<R>(scale + 0);
    return {kept, in_range(half_away(low - a / (kept == 0 ? 1.0f : kept)), zero_low, zero_high)};
  }
}

// The bits of a code.
template <class R>
__device__ __forceinline__ uint32_t find_code(float v, const Found& f) {
  constexpr int low = R::codes.low(), high = R::codes.high();
  int code;
  if constexpr (R::placement == Placement::block) {
    const float inverse = f.scale == 0 ? 0.0f : __fdiv_rn(1.0f, f.scale);
    if constexpr (R::rule == Rule::absmax_signed)
      return in_range(__fadd_rn(__fmul_rn(v, inverse), 0.5f - low), 0, high - low);
    code = in_range(half_away(__fmul_rn(v, inverse)), low, high);
  } else {
    code = in_range(half_away(static_cast<double>(v) / (f.scale == 0 ? 1.0f : f.scale)) + f.zero, low, high);
  }
  return static_cast<uint32_t>(R::codes.is_signed ? code & 255 : code + R::codes.zero);
}

template <class R>
__device__ __forceinline__ void write_scale(uint8_t* row, const RowFields& at, int group, const Found& f) {
  uint8_t* p;
  if constexpr (R::placement == Placement::block)
    p = row + static_cast<size_t>(group) * R::bytes + R::scale.at;
  else
    p = row + at.field_at[0] + group * real_bytes(R::scale.real);
  const uint16_t half = f32_to_f16(f.scale);
  const uint32_t word = f32_bits(f.scale);
  for (int i = 0; i < real_bytes(R::scale.real); ++i)
    p[i] = static_cast<uint8_t>(R::scale.real == Real::f16 ? half >> (8 * i) : word >> (8 * i));
  if constexpr (R::rule == Rule::zero_point) row[at.field_at[1] + group] = static_cast<uint8_t>(f.zero);
}

// G: values of a group, a multiple of 32, or 0 for a whole row.
template <class R, int G, Real X>
__device__ __forceinline__ void encode(const void* x, uint8_t* out, const RowFields& at, int n, int k) {
  static_assert(R::kind == Kind::planes && G % 32 == 0 && (R::codes.bits() == 4 || R::codes.bits() == 8));
  const int lane = threadIdx.x % 32, size = G ? G : k, groups = (k + size - 1) / size;
  const size_t warp = (blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x) / 32;
  const int row = static_cast<int>(warp / groups), group = static_cast<int>(warp % groups);
  if (row >= n) return;
  const size_t first = static_cast<size_t>(row) * k;
  const int begin = group * size, end = begin + size < k ? begin + size : k;
  float least = get<X>(x, first + begin), most = least, greatest = -1, signed_greatest = 0;
  for (int i = begin; i < end; i += 32) {
    const float v = get<X>(x, first + (i + lane < end ? i + lane : end - 1));
    least = v < least ? v : least, most = v > most ? v : most;
    const float top = reduce_warp(magnitude(v), Larger());
    if (top > greatest) {
      greatest = top;
      signed_greatest = __shfl_sync(~0u, v, __ffs(__ballot_sync(~0u, magnitude(v) == top)) - 1);
    }
  }
  least = -reduce_warp(-least, Larger()), most = reduce_warp(most, Larger());
  const Found found = find_scale<R>(least, most, greatest, signed_greatest);
  uint8_t* to = out + static_cast<size_t>(row) * at.row_bytes;
  if (lane == 0) write_scale<R>(to, at, group, found);
  for (int i = begin; i < end; i += 32) {
    const int e = i + lane;
    const bool padding = e >= k;
    const float v = get<X>(x, first + (e < end ? e : end - 1));
    const uint32_t code = padding && R::placement == Placement::row ? 0 : find_code<R>(v, found);
    uint8_t* p = to;
    if constexpr (R::placement == Placement::block)
      p += static_cast<size_t>(group) * R::bytes + R::codes.planes[0].start / 8;
    else
      p += i * R::codes.bits() / 8;
    const uint32_t high = __shfl_down_sync(~0u, code, 16);
    if constexpr (R::codes.bits() == 8)
      p[lane] = static_cast<uint8_t>(code);
    else if (lane < 16)
      p[lane] = static_cast<uint8_t>(code | high << 4);
  }
}

}  // namespace fewbit
