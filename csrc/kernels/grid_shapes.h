// Where the points of grids and their signs lie in a k-block, computed from the record while compiling: like shapes.h,
// for instruction sets that can gather.
#pragma once
#include "kernels/shapes.h"

namespace fewbit {

// Base-3 digits of 32 bytes, then 16, five each, then of four bytes, four each: what a byte is multiplied by so that
// the digit of this code comes first.
constexpr int power_of_3(int code) {
  const int digit = code < 160 ? code / 32 : code < 240 ? (code - 160) / 16 : (code - 240) / 4;
  return digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
}

// The numbers of the points of a grid for a vector of codes, one in each lane of 4 or 8 bytes: a low and a high piece,
// each from its own 16-byte windows.
struct PointIndex {
  int window[2][4] = {}, pieces = 0;
  uint8_t byte[2][64] = {};
  uint16_t shift[32] = {}, mask[32] = {}, weight[32] = {};
};

// One bit for each code of a vector.
struct BitOf {
  int window[4] = {};
  uint8_t byte[64] = {}, bit[64] = {};
};

// One piece of small integers, one in each lane of 2, 4 or 8 bytes of a vector: from 16-byte windows, or from 32
// neighbouring bytes, of which every 16-byte lane has eight, four and four.
struct Fields {
  int window[4] = {}, bits = 0, dst = 0, room = 0;
  bool spread = false, plain = true, even = true;  // spread: see above; plain: no shuffle; even: all shifted alike
  bool whole = false, fits = true;                 // whole: bytes, as they are
  uint8_t byte[64] = {}, shift[64] = {};           // shift: of lane i
};

// Where windows of 16 bytes must begin so that lane l sees bytes first[l] to last[l]: one for all lanes, or one for
// each, or none that fit (-1).
struct Windows {
  int at[4] = {};
};
constexpr Windows windows_for(const int (&first)[4], const int (&last)[4], int room) {
  int low = first[0], high = last[0];
  for (int l = 1; l < 4; ++l) {
    low = first[l] < low ? first[l] : low;
    high = last[l] > high ? last[l] : high;
  }
  Windows out;
  for (int l = 0; l < 4; ++l) {
    const int from = high - low < 16 ? low : first[l];
    out.at[l] = from + 16 > room ? room - 16 : from;
  }
  return out;
}

// The same, but 64 neighbouring bytes if these will do.
constexpr Windows joined_windows_for(const int (&first)[4], const int (&last)[4], int room) {
  int least = 0, most = room - 64;
  for (int l = 0; l < 4; ++l) {
    least = last[l] - 16 * l - 15 > least ? last[l] - 16 * l - 15 : least;
    most = first[l] - 16 * l < most ? first[l] - 16 * l : most;
  }
  if (least > most) return windows_for(first, last, room);
  return {{least, least + 16, least + 32, least + 48}};
}

template <class F>
struct GridShape {
  static constexpr Grid grid = F::codes;
  static constexpr int per_lane = 16 / grid.width;  // points in a run of 16

  // The windows for piece k of what the lanes of vector j need.
  static constexpr Windows windows(const Ints& what, int k, int every, int j) {
    int first[4] = {1 << 30, 1 << 30, 1 << 30, 1 << 30}, last[4] = {};
    for (int c = 0; c < 64; ++c) {
      const Piece p = what.piece(k, (64 * j + c) / every);
      const int l = c / 16, end = (p.bit + p.bits - 1) / 8;
      first[l] = p.bit / 8 < first[l] ? p.bit / 8 : first[l];
      last[l] = end > last[l] ? end : last[l];
    }
    return windows_for(first, last, F::bytes);
  }
  static constexpr bool fits(const Ints& what, int k, int every) {
    for (int c = 0; c < kBlockK; ++c) {
      const int at = windows(what, k, every, c / 64).at[c % 64 / 16];
      const Piece p = what.piece(k, c / every);
      if (p.bit / 8 < at || (p.bit + p.bits - 1) / 8 >= at + 16) return false;
    }
    return true;
  }
  static constexpr PointIndex index(int j) {
    PointIndex out;
    for (auto& b : out.byte[0]) b = 0x80;
    for (auto& b : out.byte[1]) b = 0x80;
    for (int k = 0; k < grid.index.pieces(0); ++k) {
      const Windows w = windows(grid.index, k, grid.width, j);
      for (int lane = 0; lane < 64 / grid.width; ++lane) {
        const int l = lane / per_lane;
        const Piece p = grid.index.piece(k, j * 64 / grid.width + lane);
        const int word = lane * grid.width / 2 + k, at = lane * grid.width + 2 * k;
        out.window[k][l] = w.at[l];
        out.byte[k][at] = static_cast<uint8_t>(p.bit / 8 - w.at[l]);
        if (p.bit % 8 + p.bits > 8) out.byte[k][at + 1] = static_cast<uint8_t>(p.bit / 8 + 1 - w.at[l]);
        out.shift[word] = static_cast<uint16_t>(p.bit % 8);
        out.mask[word] = static_cast<uint16_t>((1 << p.bits) - 1);
        out.weight[word] = static_cast<uint16_t>(1 << p.dst);
      }
      out.pieces = k + 1;
    }
    return out;
  }
  // Transposed, vector c holds values 32 g + 8 c to 32 g + 8 c + 7 in its eight bytes g. What a lane of it stands for,
  // if lanes are as large as points; words are the elements themselves, in order. A vector of scales is c = -1.
  static constexpr int element(int size, int c, int lane) {
    if (c < 0) return F::group == 16 ? lane : lane / 2;
    return size == 2 ? lane : size == 8 ? 4 * lane + c : lane / 2 * 8 + 2 * c + lane % 2;
  }
  // Where a piece begins: in whole words if that will do, unless it is to be shifted up; whether it is a byte that
  // needs no shift.
  static constexpr bool whole(Piece p, int size) { return size > 2 && p.bits == 8 && p.bit % 8 == 0; }
  static constexpr int begin(Piece p, int size) {
    return whole(p, size) || p.dst > 0 || p.bit % 16 + p.bits > 16 ? p.bit / 8 : p.bit / 16 * 2;
  }
  static constexpr int count(Piece p, int size) {
    return begin(p, size) * 8 + 8 < p.bit + p.bits || (p.dst == 0 && !whole(p, size)) ? 2 : 1;
  }
  // Piece k of `what`, in the lanes of `size` bytes of vector c.
  static constexpr Fields fields(const Ints& what, int k, int size, int c = 0) {
    Fields out;
    out.room = F::bytes;
    int first[4] = {1 << 30, 1 << 30, 1 << 30, 1 << 30}, last[4] = {};
    for (int i = 0; i < 64 / size; ++i) {
      for (int any = c < 0 ? -1 : 0; any < (c < 0 ? 0 : 4); ++any) {  // the same windows for all: they are loaded once
        const Piece p = what.piece(k, element(size, any, i));
        const int l = i * size / 16, at = begin(p, size), end = at + count(p, size) - 1;
        first[l] = at < first[l] ? at : first[l];
        last[l] = end > last[l] ? end : last[l];
      }
    }
    const Windows windows = joined_windows_for(first, last, F::bytes);
    out.spread = windows.at[1] == windows.at[0] + 8;
    const int base = last[0] - 7;  // of 32 bytes, eight for each lane
    for (int l = 0; l < 4; ++l) {
      out.spread = out.spread && base >= 0 && first[l] >= base + 8 * l && last[l] <= base + 8 * l + 7;
      out.window[l] = windows.at[l];
    }
    for (auto& b : out.byte) b = 0x80;
    for (int i = 0; i < 64 / size; ++i) {
      const Piece p = what.piece(k, element(size, c, i));
      const int l = i * size / 16, from = out.spread ? base + 8 * l : out.window[l];
      for (int b = 0; b < count(p, size); ++b) {
        const int inside = begin(p, size) + b - from;
        out.byte[i * size + b] = static_cast<uint8_t>(out.spread ? inside / 4 * 8 + inside % 4 : inside);
        out.fits = out.fits && inside >= 0 && inside < (out.spread ? 8 : 16);
      }
      out.fits = out.fits && (p.dst == 0 || p.dst >= 8);
      out.shift[i] = static_cast<uint8_t>(p.bit - 8 * begin(p, size));
      out.even = out.even && out.shift[i] == out.shift[0];
      out.whole = whole(p, size);
      out.bits = p.bits;
      out.dst = p.dst;
    }
    out.plain = !out.spread;
    for (int b = 0; b < 64; ++b) out.plain = out.plain && out.byte[b] == b % 16;
    if (out.spread) out.window[0] = base;
    return out;
  }
  // Whether the pieces k of 32 elements are whole bytes, one after the other.
  static constexpr bool in_bytes(const Ints& what, int k) {
    for (int i = 0; i < 32; ++i) {
      if (what.piece(k, i).bits != 8 || what.piece(k, i).bit != what.piece(k, 0).bit + 8 * i) return false;
    }
    return what.piece(k, 0).bit % 8 == 0;
  }
  // The bit that flips the sign of each code, or moves it; where seven bits tell eight signs, none for the eighth.
  static constexpr const Ints& bits() { return grid.signs.used > 0 ? grid.signs : grid.shift; }
  static constexpr int bits_every = grid.signs.used > 0 ? 8 : grid.shift_every;
  static constexpr BitOf bit(int j) {
    BitOf out;
    const Windows w = windows(bits(), 0, bits_every, j);
    for (int c = 0; c < 64; ++c) {
      const int l = c / 16, e = 64 * j + c;
      const Piece p = bits().piece(0, e / bits_every);
      const int at = p.bit + (grid.signs.used > 0 ? e % 8 : 0);
      out.window[l] = w.at[l];
      const bool told = grid.signs.used == 0 || e % 8 < p.bits;
      out.byte[c] = static_cast<uint8_t>(told ? at / 8 - w.at[l] : 0x80);
      out.bit[c] = static_cast<uint8_t>(told ? 1 << at % 8 : 0);
    }
    return out;
  }
  static constexpr bool even_signs = grid.signs.used > 0 && grid.signs.bits() == 7;
  static constexpr bool can_gather() {
    if (grid.index.pieces(0) > 2 || bits().pieces(0) != 1 || !fits(bits(), 0, bits_every)) return false;
    for (int k = 0; k < grid.index.pieces(0); ++k) {
      if (!fits(grid.index, k, grid.width)) return false;
    }
    return true;
  }
};

// What the values of the points of a grid are, each once, and where their numbers lie.
template <class F>
struct GridLevels {
  static constexpr Grid grid = F::codes;
  static constexpr int width = grid.width, count = sizeof(F::points.values) / width;

  struct List {
    int8_t values[16] = {};
    int used = 0;

    constexpr int find(int8_t v) const {
      int i = 0;
      while (i < used && values[i] != v) ++i;
      return i;
    }
  };
  static constexpr List list = [] {
    List out;
    for (int i = 0; i < count * width && out.used < 16; ++i) {
      const int8_t v = F::points.values[i / width][i % width];
      if (out.find(v) == out.used) out.values[out.used++] = v;
    }
    return out;
  }();
  static constexpr bool in_order(int piece, int size) {
    for (int i = 0; i < kBlockK / width; ++i) {
      const Piece p = grid.index.piece(piece, i);
      if (p.bits != size || p.bit != grid.index.piece(piece, 0).bit + size * i) return false;
    }
    return grid.index.piece(piece, 0).bit % 8 == 0;
  }
  // Numbers of 64 points as bytes, one after the other, and perhaps a bit for each.
  static constexpr bool in_bytes() {
    if (width != 4 || (count != 256 && count != 512)) return false;
    return in_order(0, 8) && grid.index.pieces(0) == count / 256 && (count == 256 || in_order(1, 1));
  }
};

}  // namespace fewbit
