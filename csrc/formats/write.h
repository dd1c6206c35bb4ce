// Writes a block by its record, one element at a time, into bytes that are still 0: the inverse of read.h. Kernels use
// it where they have no faster way.
#pragma once
#include "formats/geometry.h"
#include "formats/real.h"

namespace fewbit {

inline void write_piece(uint8_t* p, Piece at, int code) {
  const int byte = at.bit >> 3, shift = at.bit & 7;
  const int word = (code >> at.dst & ((1 << at.bits) - 1)) << shift;
  p[byte] = static_cast<uint8_t>(p[byte] | word);
  if (shift + at.bits > 8) p[byte + 1] = static_cast<uint8_t>(p[byte + 1] | word >> 8);
}

// The bits that stand for a number.
constexpr int raw_code(const Ints& what, int value) {
  return what.is_signed ? value & ((1 << what.bits()) - 1) : (value + what.zero) / what.times;
}

inline void write_int(const Ints& what, uint8_t* p, int i, int value) {
  const int code = raw_code(what, value), pieces = what.pieces(i);
  for (int k = 0; k < pieces; ++k) write_piece(p, what.piece(k, i), code);
}

// All digits of a block; a code is a digit, from 0 to 2.
inline void write_trits(const Trits& what, uint8_t* p, const uint8_t* codes) {
  for (const TritPart& part : what.parts) {
    for (int b = 0; b < part.bytes; ++b) {
      unsigned v = 0;
      for (int n = 0; n < part.digits; ++n) v = v * 3 + codes[n * part.bytes + b];
      for (int n = part.digits; n < 5; ++n) v *= 3;
      p[part.first + b] = static_cast<uint8_t>((v * 256 + 242) / 243);
    }
    codes += part.bytes * part.digits;
  }
}

// Half of 2^(e - 127), and of an unsigned 8-bit float, back to their codes: the least whose value is not below v.
inline uint8_t small_float_code(Real r, float v) {
  const int last = r == Real::ue4m3 ? 126 : 254;
  int low = 0, high = last;
  while (low < high) {
    const uint8_t middle = static_cast<uint8_t>((low + high) / 2);
    if ((r == Real::ue4m3 ? ue4m3_half(middle) : e8m0_half(middle)) < v)
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<uint8_t>(low);
}

// To the nearest integer, half to even, and kept in range; NaN is 0.
template <class T>
inline T nearest_whole(float v) {
  constexpr double top = static_cast<double>(uint64_t{1} << (8 * sizeof(T) - 1)), magic = 6755399441055744.0;
  double wide = v;
  if (wide > -1073741824.0 && wide < 1073741824.0) wide = (wide + magic) - magic;
  if (wide >= top) return static_cast<T>((uint64_t{1} << (8 * sizeof(T) - 1)) - 1);
  if (wide < -top) return static_cast<T>(uint64_t{1} << (8 * sizeof(T) - 1));
  return wide == wide ? static_cast<T>(wide) : T{0};
}

inline void write_real(Real r, uint8_t* p, float v) {
  switch (r) {
    case Real::u8: store(p, static_cast<uint8_t>(nearest_whole<int16_t>(v))); break;
    case Real::e8m0:
    case Real::ue4m3: *p = small_float_code(r, v); break;
    case Real::f8_e4m3: *p = f32_to_f8_e4m3(v); break;
    case Real::i8: store(p, nearest_whole<int8_t>(v)); break;
    case Real::f16: store(p, f32_to_f16(v)); break;
    case Real::bf16: store(p, f32_to_bf16(v)); break;
    case Real::i16: store(p, nearest_whole<int16_t>(v)); break;
    case Real::f32: store(p, v); break;
    case Real::i32: store(p, nearest_whole<int32_t>(v)); break;
    case Real::f64: store(p, static_cast<double>(v)); break;
    case Real::i64: store(p, nearest_whole<int64_t>(v)); break;
  }
}

}  // namespace fewbit
