// Where the codes and the small scales of a k-block lie, computed from the record while compiling: what the vector code
// of an instruction set is made from. Holds no instruction and no format name.
#pragma once
#include <algorithm>
#include <array>

#include "formats/geometry.h"

namespace fewbit {

// The runs of 16 values that a vector holds, by their first values. In order: run 0, 1, 2, ... Strided, for vectors of
// 64 bytes: runs 0, 4, 8, 12, then 1, 5, 9, 13, and so on.
struct Runs {
  int first[4] = {}, used = 0;
};

constexpr Runs runs(int vector, int width, bool strided) {
  Runs out;
  out.used = width / 16;
  for (int l = 0; l < out.used; ++l) out.first[l] = 16 * (strided ? vector + 4 * l : vector * out.used + l);
  return out;
}

// The transposed order: every lane, four values, belongs to one group of 16, which it meets in four vectors. A run of
// 16 bytes with codes of two bits holds four groups, and only its dwords must be permuted.
constexpr int transposed_group(int lane) { return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2; }
constexpr int transposed_four(int vector, int lane) { return (lane + vector) % 4; }

// One plane of a vector of codes whose 16-byte lanes each come from 16 neighbouring bytes, all shifted alike.
struct Lanes {
  int at[4] = {}, shift[4] = {};
  int bits = 0, dst = 0, room = 0;  // room: bytes of the k-block
};

// The same where the two halves of a run of 16 lie apart, or share their bytes.
struct Halves {
  int at[8] = {}, shift[8] = {};
  int bits = 0, dst = 0;
};

// One plane of a vector of codes that lie otherwise: a byte of a 16-byte window and a shift for each.
struct Scatter {
  int window[4] = {};
  uint8_t byte[64] = {}, shift[64] = {};
  int bits = 0, dst = 0, room = 0;

  // Whether single bits of every run lie one after the other, from the start of a byte.
  constexpr bool in_order() const {
    for (int i = 0; i < 64; ++i) {
      if (byte[i] != byte[i / 16 * 16] + i % 16 / 8 || shift[i] != i % 8) return false;
    }
    return true;
  }
};

// Where 16 values of a block find one piece of their codes: in 16 bytes, shifted alike; or as 16 bits in order.
struct Run16 {
  int at = 0, shift = 0, bits = 0, dst = 0;
  bool in_bits = false, fits = false;
};

// Small integers, one in each float lane: up to two bytes of a 16-byte window, shifted, masked and placed.
struct Small {
  int window = 0, pieces = 0, zero[16] = {}, times = 1;
  bool is_signed = false, fits = true;
  bool wide = false;  // one piece each, in dwords of a 64-byte window
  int byte[3][16] = {}, bytes[3][16] = {}, shift[3][16] = {}, mask[3][16] = {}, dst[3][16] = {};

  // The same bits of 16 bytes.
  constexpr bool alike() const {
    for (int l = 0; l < 16; ++l) {
      if (mask[0][l] != mask[0][0] || shift[0][l] != shift[0][0] || bytes[0][l] != 1) return false;
    }
    return pieces == 1 && !wide;
  }
  constexpr bool in_order() const {
    for (int l = 0; l < 16; ++l) {
      if (byte[0][l] != l) return false;
    }
    return alike();
  }
  // Where integers that are not shifted down come to stand: how many bits too high.
  constexpr int unshifted_by() const {
    if (wide || is_signed || times != 1) return 0;
    if (alike()) return shift[0][0];
    if (pieces != 2) return 0;
    int most = 0;
    for (int i = 0; i < 32; ++i) most = std::max(most, shift[i / 16][i % 16] - dst[i / 16][i % 16]);
    for (int i = 0; i < 32; ++i) {  // signed words hold the pieces and what they are multiplied by
      const int k = i / 16, l = i % 16, up = most - shift[k][l] + dst[k][l];
      if (mask[k][l] << shift[k][l] > 0x7FFF || up > 14) return 0;
    }
    return most;
  }
  // In the transposed order of groups.
  constexpr Small transposed() const {
    Small out = *this;
    for (int i = 0; i < 48; ++i) {
      const int k = i / 16, l = i % 16, g = transposed_group(l);
      out.byte[k][l] = byte[k][g];
      out.bytes[k][l] = bytes[k][g];
      out.shift[k][l] = shift[k][g];
      out.mask[k][l] = mask[k][g];
      out.dst[k][l] = dst[k][g];
      out.zero[l] = zero[g];
    }
    return out;
  }
};

// The same for two pieces: words 0 and 1 of a dword, to be shifted, masked, multiplied by weights and added.
// `unshifted`: only masked, and multiplied so that they fit together.
struct TwoPieces {
  uint8_t byte[64] = {};
  uint16_t shift[32] = {}, mask[32] = {}, weight[32] = {};
};

template <Small t, bool unshifted = false>
constexpr TwoPieces two_pieces() {
  TwoPieces out;
  for (int w = 0; w < 32; ++w) {
    const int l = w / 2, k = w % 2, mask = t.mask[k][l];
    const int shift = unshifted ? 0 : t.shift[k][l], up = unshifted ? t.unshifted_by() - t.shift[k][l] : 0;
    out.byte[2 * w] = static_cast<uint8_t>(mask ? t.byte[k][l] : 0x80);
    out.byte[2 * w + 1] = static_cast<uint8_t>(mask && t.bytes[k][l] > 1 ? t.byte[k][l] + 1 : 0x80);
    out.shift[w] = static_cast<uint16_t>(shift);
    out.mask[w] = static_cast<uint16_t>(mask << (t.shift[k][l] - shift));
    out.weight[w] = static_cast<uint16_t>(mask ? 1 << (t.dst[k][l] + up) : 0);
  }
  return out;
}

// What 16 codes stand for, plus a bias: for shuffles.
template <Codebook book, int bias>
inline constexpr std::array<uint8_t, 16> lookup_table = [] {
  std::array<uint8_t, 16> out{};
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(book.values[i] + bias);
  return out;
}();

// How a byte that goes into the dot product stands for a number: number = times * byte - zero.
struct Coding {
  bool is_signed = false, flip = false;
  int zero = 0, times = 1;
};

template <class F>
constexpr Coding coding(int max_unsigned) {
  if constexpr (F::kind == Kind::grid) return {false, false, -F::codes.low, 1};
  if constexpr (F::kind == Kind::trits) return {false, false, 1, 1};
  if constexpr (F::kind == Kind::planes) {
    constexpr Ints c = F::codes;
    if constexpr (F::codebook.used > 0) {
      const bool narrow = F::codebook.high() - F::codebook.low() <= max_unsigned;
      return {!narrow, false, narrow ? -F::codebook.low() : 0, 1};
    }
    if constexpr (c.is_signed) {
      static_assert(c.bits() == 8, "signed codes are bytes");
      return max_unsigned >= 255 ? Coding{false, true, 128, 1} : Coding{true, false, 0, 1};
    }
    if ((1 << c.bits()) - 1 > max_unsigned) return {true, true, c.zero - 128, 1};
    return {false, false, c.zero, c.times};
  }
  return {};
}

template <class F>
struct Shape {
  static constexpr bool row = F::placement == Placement::row;
  static constexpr int group_size = F::group == 16 ? 16 : 32;  // values with one scale, as the kernels see it
  static constexpr int groups = kBlockK / group_size;
  static constexpr int blocks = row ? 1 : kBlockK / F::block;
  static constexpr int step = row ? 0 : blocks * F::bytes;  // bytes of a k-block; row placement: of its codes

  static constexpr int k_block_bytes() {
    if constexpr (row)
      return kBlockK * F::codes.bits() / 8;
    else
      return step;
  }
  // Where piece k of element e of a k-block lies, in bits from the k-block.
  static constexpr Piece piece(int k, int e) {
    if constexpr (row) return F::codes.piece(k, e);
    Piece p = F::codes.piece(k, e % F::block);
    p.bit += e / F::block * F::bytes * 8;
    return p;
  }
  // Whether all bits k of these runs of 16 values lie in 16 neighbouring bytes each.
  static constexpr bool in_lanes(int k, Runs runs) {
    for (int l = 0; l < runs.used; ++l) {
      for (int i = 1; i < 16; ++i) {
        if (piece(k, runs.first[l] + i).bit != piece(k, runs.first[l]).bit + 8 * i) return false;
      }
    }
    return true;
  }
  static constexpr Halves halves(int k, Runs runs) {
    Halves out;
    for (int h = 0; h < 2 * runs.used; ++h) {
      const Piece p = piece(k, runs.first[h / 2] + h % 2 * 8);
      out.at[h] = p.bit / 8;
      out.shift[h] = p.bit % 8;
      out.bits = p.bits;
      out.dst = p.dst;
    }
    return out;
  }
  // Whether both halves of every run are in the same eight bytes, and these follow each other.
  static constexpr bool in_shared_halves(int k, Runs runs) {
    for (int h = 0; h < 2 * runs.used; ++h) {
      const int first = piece(k, runs.first[h / 2] + h % 2 * 8).bit;
      for (int i = 1; i < 8; ++i) {
        if (piece(k, runs.first[h / 2] + h % 2 * 8 + i).bit != first + 8 * i) return false;
      }
      if (halves(k, runs).at[h] != halves(k, runs).at[0] + h / 2 * 8) return false;
    }
    return true;
  }
  static constexpr Lanes lanes(int k, Runs runs) {
    Lanes out;
    out.room = k_block_bytes();
    for (int l = 0; l < runs.used; ++l) {
      const Piece p = piece(k, runs.first[l]);
      out.at[l] = p.bit / 8;
      out.shift[l] = p.bit % 8;
      out.bits = p.bits;
      out.dst = p.dst;
    }
    return out;
  }
  static constexpr Scatter scatter(int k, Runs runs) {
    Scatter out;
    out.room = k_block_bytes();
    for (int l = 0; l < runs.used; ++l) {
      int low = 1 << 30;
      for (int i = 0; i < 16; ++i) {
        const int byte = piece(k, runs.first[l] + i).bit / 8;
        low = byte < low ? byte : low;
      }
      const int last = k_block_bytes() - 16;  // a window never reaches past the k-block
      out.window[l] = low < last ? low : last;
      for (int i = 0; i < 16; ++i) {
        const Piece p = piece(k, runs.first[l] + i);
        out.byte[16 * l + i] = static_cast<uint8_t>(p.bit / 8 - out.window[l]);
        out.shift[16 * l + i] = static_cast<uint8_t>(p.bit % 8);
        out.bits = p.bits;
        out.dst = p.dst;
      }
    }
    return out;
  }
  // Whether codes may be left unshifted in a byte, to be divided in the scales of their groups: one plane, and all of
  // a group with the same shift.
  static constexpr bool can_be_unshifted(int max_unsigned) {
    if constexpr (F::kind != Kind::planes) {
      return false;
    } else {
      if (max_unsigned < 255 || F::codes.pieces(0) != 1 || F::codebook.used > 0 || F::codes.bits() > 4) return false;
      bool shifted = false;
      for (int e = 0; e < kBlockK; ++e) {
        if (piece(0, e).bit % 8 != unshifted_by(e / group_size)) return false;
        shifted = shifted || unshifted_by(e / group_size) > 0;
      }
      return shifted;
    }
  }
  static constexpr int unshifted_by(int group) { return piece(0, group * group_size).bit % 8; }
  static constexpr int first_code() { return piece(0, 0).bit / 8; }
  static constexpr int first_bit() { return piece(1, 0).bit / 8; }
  // Codes of two bits, 128 in 32 bytes, or the same and a third bit of each, 256 in 32 bytes. The former are transposed
  // as they are loaded; the latter are first joined in the halves of bytes, where shifts 0 and 2 share a vector.
  static constexpr bool can_transpose(int max_unsigned) {
    if constexpr (F::kind != Kind::planes) {
      return false;
    } else {
      if (((1 << F::codes.bits()) - 1) << transposed_shift(3) > max_unsigned) return false;
      if (F::codes.pieces(0) > 2 || F::codebook.used > 0 || first_code() + 64 > k_block_bytes()) return false;
      for (int e = 0; e < kBlockK; ++e) {
        const Piece two = piece(0, e), one = piece(1, e);
        if (two.bits != 2 || two.bit != 8 * (first_code() + e / 128 * 32 + e % 32) + e / 32 % 4 * 2) return false;
        if (one.bits > 1 || (one.bits == 1 && one.bit != 8 * (first_bit() + e % 32) + e / 32)) return false;
      }
      return true;
    }
  }
  static constexpr bool joins() { return F::codes.pieces(0) == 2; }
  static constexpr int transposed_shift(int lane) { return joins() ? lane % 4 / 2 * 4 : lane % 4 * 2; }  // in a byte
  // Codes of few bits with a scale for 32 or more: taken in strided order, two successive vectors have the same scales
  // in their lanes, and their dot products can be added as integers.
  static constexpr bool worth_striding() {
    if constexpr (F::kind == Kind::planes)
      return group_size == 32 && F::codes.bits() < 8 && in_lanes(0, runs(0, 64, true));
    else
      return false;
  }
};

// Scales and offsets of a k-block as vectors of `lanes` floats. Where two for each group fit into one vector they are
// neighbours in it (scale, offset, scale, ...); else all scales come first.
template <class F, int lanes>
struct Slots {
  static constexpr int groups = Shape<F>::groups;
  static constexpr bool offset = F::offset.present;
  static constexpr bool paired = 2 * groups <= lanes;
  static constexpr int scale_vectors = paired ? 1 : groups / lanes;
  static constexpr int vectors = paired ? 1 : scale_vectors * (1 + offset);

  static constexpr int slot(int g, bool is_offset) { return paired ? 2 * g + is_offset : g + is_offset * groups; }

  static constexpr void put(Small& out, const Ints& what, int lane, int g, int& low) {
    for (int k = 0; k < what.pieces(g); ++k) {
      const Piece p = what.piece(k, g);
      out.byte[k][lane] = p.bit / 8;
      out.bytes[k][lane] = p.bit % 8 + p.bits > 8 ? 2 : 1;
      out.shift[k][lane] = p.bit % 8;
      out.mask[k][lane] = (1 << p.bits) - 1;
      out.dst[k][lane] = p.dst;
      low = p.bit / 8 < low ? p.bit / 8 : low;
    }
    out.pieces = what.pieces(g) > out.pieces ? what.pieces(g) : out.pieces;
    out.zero[lane] = what.zero;
    out.is_signed = what.is_signed;
    out.times = what.times;
    out.fits = out.fits && (!what.is_signed || what.bits() == 8);
  }
  // The integers of vector v; `fits` tells whether one window holds them.
  static constexpr Small small(int v) {
    Small out;
    int low = 1 << 30;
    for (int g = 0; g < groups; ++g) {
      if (slot(g, false) / lanes == v) put(out, F::scale.ints, slot(g, false) % lanes, g, low);
      if (offset && slot(g, true) / lanes == v) put(out, F::offset.ints, slot(g, true) % lanes, g, low);
    }
    return placed(out, low, 16).fits ? placed(out, low, 16) : placed(out, low, 64);
  }
  // The same with a window of 16 bytes, or of 64 whose dwords hold one piece each.
  static constexpr Small placed(Small out, int low, int size) {
    out.window = low + size > F::bytes ? F::bytes - size : low;
    out.wide = size > 16;
    if (out.window < 0 || (out.wide && (lanes < 16 || out.pieces != 1))) out.fits = false;
    for (int k = 0; k < 3; ++k) {
      for (int l = 0; l < lanes; ++l) {
        if (!out.mask[k][l]) continue;
        out.byte[k][l] -= out.window;
        if (out.byte[k][l] + out.bytes[k][l] > size) out.fits = false;
        if (out.wide) {
          out.shift[k][l] += out.byte[k][l] % 4 * 8;
          out.byte[k][l] = out.byte[k][l] / 4;
          if (out.mask[k][l] > 0xFFFFFFFFll >> out.shift[k][l]) out.fits = false;  // reaches into the next dword
        }
      }
    }
    return out;
  }
  // f16 times small integers, a whole block to a k-block: the shape of the K-quants and the grids.
  static constexpr bool is_small() {
    if (Shape<F>::row || F::block != kBlockK || F::scale.ints.used == 0) return false;
    if (F::scale.real != Real::f16 || (offset && (F::scale.unit != 1 || F::scale.bits.used > 0))) return false;
    if (offset && (F::offset.ints.used == 0 || F::offset.real != Real::f16)) return false;
    if (paired && offset && F::offset.at != F::scale.at + 2) return false;
    for (int v = 0; v < vectors; ++v) {
      if (!small(v).fits) return false;
    }
    return true;
  }
  // One float (or a pair of f16 that are neighbours) for every block: the shape of the simple formats.
  static constexpr bool is_strided() {
    if (Shape<F>::row || F::group != F::block || F::scale.ints.used > 0 || F::scale.bits.used > 0) return false;
    if (F::scale.unit != 1) return false;
    if (!offset) return F::scale.real == Real::f16 || F::scale.real == Real::e8m0 || F::scale.real == Real::f32;
    return F::scale.real == Real::f16 && F::offset.ints.used == 0 && F::offset.at == F::scale.at + 2;
  }
  // A byte for every 16 values, four to a block.
  static constexpr bool is_quads() {
    return !Shape<F>::row && F::block == 64 && F::group == 16 && F::scale.ints.used == 0 && !offset &&
           F::scale.real == Real::ue4m3 && F::scale.unit == 1;
  }
};

}  // namespace fewbit
