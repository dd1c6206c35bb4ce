// What a format record says, as constants that the compiler can compute with. The records themselves are in
// formats.generated.h; src/fewbit/formats/spec.py explains the words.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fewbit {

constexpr int kBlockK = 256;  // values that a kernel handles at once
constexpr int kGranule = 32;  // rows of row-placed formats are padded to a multiple of this many values

struct Digit {
  int size = 0, stride = 0;  // stride in bits
};

struct Plane {
  int start = 0;  // bits from the start of the block (row placement: of the field)
  int bits = 0;
  int first = 0, last = 1 << 30;  // elements that it holds
  Digit digits[3] = {};
  int used = 0;  // digits

  constexpr int bit(int i) const {
    i -= first;
    int at = start;
    for (int d = 0; d + 1 < used; ++d) {
      at += i % digits[d].size * digits[d].stride;
      i /= digits[d].size;
    }
    return at + i * digits[used - 1].stride;
  }
  constexpr bool holds(int i) const { return first <= i && i < last; }
};

// Some bits of one small integer: `bits` bits at bit `bit` of the block, placed at bit `dst` of the integer.
struct Piece {
  int bit = 0, bits = 0, dst = 0;
};

struct Ints {
  Plane planes[4] = {};
  int used = 0;
  int zero = 0, times = 1;
  bool is_signed = false;

  constexpr int pieces(int i) const {
    int n = 0;
    for (int p = 0; p < used; ++p) n += planes[p].holds(i);
    return n;
  }
  constexpr Piece piece(int k, int i) const {
    int dst = 0;
    for (int p = 0; p < used; ++p) {
      if (!planes[p].holds(i)) continue;
      if (k-- == 0) return {planes[p].bit(i), planes[p].bits, dst};
      dst += planes[p].bits;
    }
    return {};
  }
  constexpr int bits() const {
    int n = 0;
    for (int p = 0; p < used; ++p) n += planes[p].holds(0) ? planes[p].bits : 0;
    return n;
  }
  constexpr int low() const { return is_signed ? -(1 << (bits() - 1)) : -zero; }
  constexpr int high() const { return is_signed ? (1 << (bits() - 1)) - 1 : times * ((1 << bits()) - 1) - zero; }
};

struct TritPart {
  int first = 0, bytes = 0, digits = 0;
};

struct Trits {
  TritPart parts[3] = {};
};

struct Grid {
  const int8_t* points = nullptr;  // rows of `width`
  int width = 8;
  Ints index = {}, signs = {}, shift = {};  // unused ones have used == 0
  int shift_every = 0;
  int low = 0;  // the lowest code
};

enum class Real { u8, e8m0, ue4m3, f8_e4m3, i8, f16, bf16, i16, f32, i32, f64, i64 };

constexpr int real_bytes(Real r) {
  switch (r) {
    case Real::u8:
    case Real::e8m0:
    case Real::ue4m3:
    case Real::f8_e4m3:
    case Real::i8: return 1;
    case Real::f16:
    case Real::bf16:
    case Real::i16: return 2;
    case Real::f32:
    case Real::i32: return 4;
    default: return 8;
  }
}

struct Factor {
  bool present = false;
  Real real = Real::f32;
  int at = 0;       // byte of the block (row placement: number of the field after the codes)
  int ints_at = 0;  // row placement: number of the field that holds the integers
  Ints bits = {};   // an f16 whose bits lie apart, if used
  Ints ints = {};   // multiplied, if used
  float unit = 1;
};

enum class Kind { scalar, planes, grid, trits };
enum class Placement { block, row };
enum class Rule { cast, absmax, absmax_signed, minmax, zero_point, mean, mxfp4, q8_k, search };

struct Sums {
  int at = -1;  // byte of the block; -1: none
  int every = 0;
  Real real = Real::i16;
};

struct Codebook {
  int used = 0;
  int8_t values[16] = {};
  constexpr int low() const {
    int v = 127;
    for (int i = 0; i < used; ++i) v = values[i] < v ? values[i] : v;
    return v;
  }
  constexpr int high() const {
    int v = -128;
    for (int i = 0; i < used; ++i) v = values[i] > v ? values[i] : v;
    return v;
  }
};

struct Reach {
  float least, most;
};

// What a record leaves out.
struct Record {
  static constexpr Placement placement = Placement::block;
  static constexpr int block = 0, bytes = 0, group = 0, offset_sign = 1;
  static constexpr Kind kind = Kind::planes;
  static constexpr Factor scale = {}, offset = {};
  static constexpr Codebook codebook = {};
  static constexpr Rule rule = Rule::cast;
  static constexpr Sums sums = {};
};
template <int block_, int bytes_, int group_>
struct BlockRecord : Record {
  static constexpr int block = block_, bytes = bytes_, group = group_;
};
struct RowRecord : Record {
  static constexpr Placement placement = Placement::row;
};
template <Real real_>
struct ScalarRecord : BlockRecord<1, real_bytes(real_), 1> {
  static constexpr Kind kind = Kind::scalar;
  static constexpr Real real = real_;
  static constexpr Rule rule = Rule::cast;
};

// The points of a grid, from the numbers whose digits they are: bit n is set for the number n.
template <int Count, int Width>
struct Points {
  int8_t values[Count][Width] = {};
};

template <int Count, int Width, int Words, int Levels>
constexpr Points<Count, Width> make_points(const uint64_t (&numbers)[Words], const int8_t (&levels)[Levels]) {
  Points<Count, Width> out;
  for (int p = 0, number = 0; p < Count; ++number) {
    if ((numbers[number / 64] >> number % 64 & 1) == 0) continue;
    for (int i = 0, n = number; i < Width; ++i, n /= Levels) out.values[p][i] = levels[n % Levels];
    ++p;
  }
  return out;
}

// A row of k values of a format whose fields lie apart: where they begin. For block placement only row_bytes counts.
struct Layout {
  size_t row_bytes = 0;
  size_t field_at[3] = {};   // after the codes
  size_t group = 0;          // values a scale; at least 1
  int shift = -1;            // its logarithm, if it is a power of two
  bool interleaved = false;  // 16 rows are interleaved: see kernels/interleaved.h
};

}  // namespace fewbit
