// The layout of plane formats on a GPU, from the record that the CPU kernels use: tiles of 8 rows x 4 granules of 32
// values, a granule in each lane of a warp, planes apart.
//
//   codes    planes of P0 (8, 4, 2, 1) and P1 (0, 1, 2) bits. A plane of p bits has p words a granule; values 4 t to
//            4 t + 3 lie in word t % p at bit p (t / p) of each byte. With a codebook they are nibbles in their order.
//   smalls   small integers of scale and offset, a byte each, or a nibble each where both fit into a byte
//   scales   floats as in the file, with the offset's own float beside them, for each group or super-block
//
// Bytes that are 8 bits without a sign are stored less 128, so that all dot products are of signed bytes.
#pragma once
#include "device.h"

namespace fewbit {

// G: values that share a scale, 0 for a whole row. The sizes are those of ops/cuda/layout.py: bits of both planes of
// codes, bytes of a granule's small integers and of a float scale, and how many granules share one (0: a row).
template <class R, int G, int Bits0, int Bits1, int SmallBytes, int ScaleBytes, int Per>
struct Tile {
  using Record = R;
  static_assert(R::kind == Kind::planes);
  static constexpr int group = G, P0 = Bits0, P1 = Bits1, bits = P0 + P1;
  static constexpr int small_bytes = SmallBytes, scale_bytes = ScaleBytes, per = Per;
  static constexpr bool book = R::codebook.used > 0;
  static constexpr bool shifted = bits == 8 && !R::codes.is_signed;
  static constexpr bool is_signed = R::codes.is_signed || book || shifted;
  static constexpr int times = R::codes.times;
  static constexpr int zero = book || R::codes.is_signed ? 0 : R::codes.zero - (shifted ? 128 : 0);

  static constexpr bool halves = G == 16;  // two groups a granule
  static constexpr bool row_scale = G == 0;
  static constexpr bool scale_ints = R::scale.ints.used > 0;
  static constexpr bool offset = R::offset.present;
  static constexpr bool offset_ints = R::offset.ints.used > 0;
  static constexpr bool offset_real = offset && R::offset.at != R::scale.at;  // a float of its own
  static constexpr bool nibbles = scale_ints && offset_ints && small_bytes == (halves ? 2 : 1);
  static constexpr bool real_halves = halves && !scale_ints;
  static constexpr int real_size = scale_bytes / (offset_real ? 2 : 1);
};

struct Planes {
  uint8_t *q0, *q1, *smalls, *scales;
};

// What a lane holds of one granule; the words that a format does not have are never touched.
struct Raw {
  uint4 w, v;
  uint2 h;
  uint32_t s, d, m;
};

// Where the float scale of granule g of a row is; Q: tiles along k.
template <class T>
__device__ __forceinline__ uint32_t scale_index(int Q, int tile, int row, int g) {
  if constexpr (T::per == 0)
    return tile * 8 + row;
  else if constexpr (T::per < 4)
    return ((tile * Q + g / 4) * 8 + row) * (4 / T::per) + g % 4 / T::per;
  else
    return (tile * ((Q + T::per / 4 - 1) / (T::per / 4)) + g / T::per) * 8 + row;
}

template <int P>
__device__ __forceinline__ uint4 load_plane(const uint8_t* plane, uint32_t at) {
  uint4 v = {};
  if constexpr (P == 4) v = load_16(reinterpret_cast<const uint4*>(plane) + at);
  if constexpr (P == 2) {
    const uint2 w = load_8(reinterpret_cast<const uint2*>(plane) + at);
    v.x = w.x, v.y = w.y;
  }
  if constexpr (P == 1) v.x = load_4(reinterpret_cast<const uint32_t*>(plane) + at);
  return v;
}

template <class T>
__device__ __forceinline__ Raw load_granule(const Planes& p, int Q, int tile, int q, int lane) {
  Raw r;
  const uint32_t t = tile * Q + q, at = t * 32 + lane;  // granules: 32 bits do, bytes need more
  if constexpr (T::P0 == 8) {
    r.w = load_16(reinterpret_cast<const uint4*>(p.q0) + at + t * 32);
    r.v = load_16(reinterpret_cast<const uint4*>(p.q0) + at + t * 32 + 32);
  } else {
    r.w = load_plane<T::P0>(p.q0, at);
  }
  if constexpr (T::P1 > 0) {
    const uint4 high = load_plane<T::P1>(p.q1, at);
    r.h = {high.x, high.y};
  }
  if constexpr (T::small_bytes > 0)
    r.s = load_word<T::small_bytes>(p.smalls + static_cast<size_t>(T::small_bytes) * at);
  if constexpr (!T::row_scale) {
    const uint8_t* d =
        p.scales + static_cast<size_t>(T::scale_bytes) * scale_index<T>(Q, tile, lane / 4, q * 4 + lane % 4);
    if constexpr (T::scale_bytes == 8) {
      const uint2 both = load_8(d);
      r.d = both.x, r.m = both.y;
    } else {
      r.d = load_word<T::scale_bytes>(d);
    }
  }
  return r;
}

// The float that a real of a few bits is; `half` of two in a granule.
template <class T, int half = 0>
__device__ __forceinline__ float scale_of(const Raw& r) {
  constexpr Real real = T::Record::scale.real;
  if constexpr (T::row_scale)
    return 1.0f;
  else if constexpr (real == Real::f16)
    return half_bits(r.d);
  else if constexpr (real == Real::f32)
    return __uint_as_float(r.d);
  else if constexpr (real == Real::e8m0)
    return e8m0_half(static_cast<uint8_t>(r.d));
  else {
    static_assert(real == Real::ue4m3);
    const uint32_t u = r.d >> (8 * half) & 0x7f;  // seven bits in the place of an f16's: 2^-7 of half the value
    return (r.d >> (8 * half) & 0xff) == 0x7f ? 0.0f : half_bits(u << 7) * 128.0f;
  }
}
template <class T>
__device__ __forceinline__ float offset_of(const Raw& r) {
  if constexpr (!T::offset_real)
    return scale_of<T>(r);
  else if constexpr (T::Record::scale.real == Real::f16)
    return half_bits(r.d >> 16);
  else
    return __uint_as_float(r.m);
}
template <class T>
__device__ __forceinline__ float row_scale(const Planes& p, int row) {
  if constexpr (!T::row_scale)
    return 1.0f;
  else
    return reinterpret_cast<const float*>(p.scales)[row];
}

template <class T, int half = 0>
__device__ __forceinline__ int small_scale(const Raw& r) {
  constexpr int at = 8 * half;
  if constexpr (!T::scale_ints)
    return 1;
  else if constexpr (T::nibbles)
    return r.s >> at & 15;
  else if constexpr (T::Record::scale.ints.low() < 0)
    return static_cast<int8_t>(r.s >> at);
  else
    return r.s >> at & 255;
}
template <class T, int half = 0>
__device__ __forceinline__ int small_offset(const Raw& r) {
  constexpr int at = T::nibbles ? 8 * half + 4 : T::scale_ints ? 8 : 0;
  if constexpr (!T::offset_ints)
    return 1;
  else if constexpr (T::nibbles)
    return r.s >> at & 15;
  else if constexpr (T::Record::offset.ints.low() < 0)
    return static_cast<int8_t>(r.s >> at);
  else
    return r.s >> at & 255;
}

// Four numbers of a codebook of 16 bytes, by four nibbles.
template <class T>
__device__ __forceinline__ uint32_t look_up(uint32_t nibbles) {
  constexpr auto& v = T::Record::codebook.values;
  constexpr auto word = [](const int8_t (&b)[16], int i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(b[i])) |
           static_cast<uint32_t>(static_cast<uint8_t>(b[i + 1])) << 8 |
           static_cast<uint32_t>(static_cast<uint8_t>(b[i + 2])) << 16 |
           static_cast<uint32_t>(static_cast<uint8_t>(b[i + 3])) << 24;
  };
  constexpr uint32_t a = word(v, 0), b = word(v, 4), c = word(v, 8), d = word(v, 12);
  const uint32_t low = nibbles & 0x7777u, high = (nibbles & 0x8888u) >> 1 | 0x3210u;
  return __byte_perm(__byte_perm(a, b, low), __byte_perm(c, d, low), high);
}

template <class T, int t>  // values 4 t + byte
__device__ __forceinline__ uint32_t codes4(const Raw& r) {
  constexpr int word = T::book ? t / 2 : t % T::P0;
  const uint4& a = word < 4 ? r.w : r.v;
  uint32_t w = word % 4 == 0 ? a.x : word % 4 == 1 ? a.y : word % 4 == 2 ? a.z : a.w;
  if constexpr (T::book) return look_up<T>(w >> 16 * (t % 2));
  if constexpr (T::P0 < 8) w = w >> (T::P0 * (t / T::P0)) & ((1u << T::P0) - 1) * 0x01010101u;
  if constexpr (T::P1 == 2) w |= ((t % 2 ? r.h.y : r.h.x) >> (2 * (t / 2)) & 0x03030303u) << T::P0;
  if constexpr (T::P1 == 1) w |= (r.h.x >> t & 0x01010101u) << T::P0;
  return w;
}

}  // namespace fewbit
