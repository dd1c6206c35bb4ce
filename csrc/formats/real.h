// Small floats to f32 and back, in plain integer arithmetic: the same on every machine. Rounding is to nearest even;
// subnormals, infinities and NaN keep what they are.
#pragma once
#include <cstdint>
#include <cstring>

#include "formats/geometry.h"

namespace fewbit {

inline float bits_f32(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint32_t f32_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

template <class T>
inline T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00) {  // infinity, or NaN made quiet as the hardware does
    return bits_f32(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0));
  }
  if (rest < 0x400) {  // subnormal: rest * 2^-24 is exact in f32
    const float f = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -f : f;
  }
  return bits_f32(sign | ((rest << 13) + 0x38000000u));
}

inline uint16_t f32_to_f16(float f) {
  const uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (a >> 13 & 0x3ff));
  if (a >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and more
  if (a < 0x38800000u) {  // below the smallest normal: let f32 addition round at 2^-24
    const float r = bits_f32(a) + 0.5f;
    return static_cast<uint16_t>(sign | (f32_bits(r) - 0x3f000000u));
  }
  const uint32_t rounded = a + 0xfffu + (a >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float bf16_to_f32(uint16_t h) { return bits_f32(static_cast<uint32_t>(h) << 16); }

inline uint16_t f32_to_bf16(float f) {
  const uint32_t u = f32_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

// Half of 2^(e - 127): the codebook of 4-bit floats holds twice their values.
inline float e8m0_half(uint8_t e) { return bits_f32(e < 2 ? 0x200000u << e : static_cast<uint32_t>(e - 1) << 23); }

// Half of an unsigned 8-bit float with 4 bits of exponent; 0x7f stands for 0.
inline float ue4m3_half(uint8_t v) {
  const uint32_t u = v & 0x7fu;
  if (u < 8) return static_cast<float>(u) * 0x1p-10f;
  return v == 0x7f ? 0 : bits_f32((u << 20) + (119u << 23));
}

// An 8-bit float with 4 bits of exponent as the bits of an f16 that is 1/256 of it, exactly: the exponents' biases are
// 8 apart. 0x7f and 0xff are NaN.
inline uint16_t f8_e4m3_to_f16_part(uint8_t v) {
  const unsigned u = v & 0x7fu;
  return static_cast<uint16_t>((v & 0x80u) << 8 | u << 7 | ((u + 1) & 0x80u) << 7);
}
inline float f8_e4m3_to_f32(uint8_t v) { return f16_to_f32(f8_e4m3_to_f16_part(v)) * 256; }

// What is too large becomes 448; there are no infinities: they become NaN.
inline uint8_t f32_to_f8_e4m3(float f) {
  constexpr uint32_t most = 0x43e00000u;  // 448
  const uint32_t u = f32_bits(f), sign = u >> 24 & 0x80u;
  uint32_t a = u & 0x7fffffffu;
  if (a >= 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a < 0x3c800000u) {  // below the smallest normal: let f32 addition round at 2^-9
    const float r = bits_f32(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (f32_bits(r) - 0x46800000u));
  }
  a = a < most ? a : most;
  const uint32_t rounded = a + 0x7ffffu + (a >> 20 & 1);
  return static_cast<uint8_t>(sign | (rounded - 0x3c000000u) >> 20);
}

inline float read_real(Real r, const uint8_t* p) {
  switch (r) {
    case Real::u8: return *p;
    case Real::e8m0: return e8m0_half(*p);
    case Real::ue4m3: return ue4m3_half(*p);
    case Real::f8_e4m3: return f8_e4m3_to_f32(*p);
    case Real::i8: return static_cast<int8_t>(*p);
    case Real::f16: return f16_to_f32(load<uint16_t>(p));
    case Real::bf16: return bf16_to_f32(load<uint16_t>(p));
    case Real::i16: return load<int16_t>(p);
    case Real::f32: return load<float>(p);
    case Real::i32: return static_cast<float>(load<int32_t>(p));
    case Real::f64: return static_cast<float>(load<double>(p));
    case Real::i64: return static_cast<float>(load<int64_t>(p));
  }
  return 0;
}

}  // namespace fewbit
