// Where the points of grids and their signs lie in a span, computed from the record while compiling: like shapes.h, for
// instruction sets that can gather.
#pragma once
#include "kernels/shapes.h"

namespace fewbit {

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

template <class F>
struct GridShape {
  static constexpr Grid grid = F::codes;
  static constexpr int per_lane = 16 / grid.width;  // points in a run of 16

  // The windows for piece k of what the lanes of vector `vector` need. Across they are the same for all vectors, so
  // that they are loaded once.
  static constexpr Windows windows(const Ints& what, int k, int every, int vector, bool across) {
    int first[4] = {1 << 30, 1 << 30, 1 << 30, 1 << 30}, last[4] = {};
    for (int j = across ? 0 : vector; j <= (across ? 3 : vector); ++j) {
      for (int c = 0; c < 64; ++c) {
        const int l = c / 16, i = (runs(j, 64, across).first[l] + c % 16) / every;
        const Piece p = what.piece(k, i);
        const int end = (p.bit + p.bits - 1) / 8;
        first[l] = p.bit / 8 < first[l] ? p.bit / 8 : first[l];
        last[l] = end > last[l] ? end : last[l];
      }
    }
    return windows_for(first, last, F::bytes);
  }
  static constexpr bool fits(const Ints& what, int k, int every, bool across) {
    for (int c = 0; c < kSpan; ++c) {
      const int j = c / 64, l = c % 64 / 16, at = windows(what, k, every, j, across).at[l];
      const Piece p = what.piece(k, (runs(j, 64, across).first[l] + c % 16) / every);
      if (p.bit / 8 < at || (p.bit + p.bits - 1) / 8 >= at + 16) return false;
    }
    return true;
  }
  static constexpr PointIndex index(int j, bool across) {
    PointIndex out;
    const Runs r = runs(j, 64, across);
    for (auto& b : out.byte[0]) b = 0x80;
    for (auto& b : out.byte[1]) b = 0x80;
    for (int k = 0; k < grid.index.pieces(0); ++k) {
      const Windows w = windows(grid.index, k, grid.width, j, across);
      for (int lane = 0; lane < 64 / grid.width; ++lane) {
        const int l = lane / per_lane, i = (r.first[l] + lane % per_lane * grid.width) / grid.width;
        const Piece p = grid.index.piece(k, i);
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
  // The bit that turns the sign of each code, or moves it; where seven bits tell eight signs, none for the eighth.
  static constexpr const Ints& bits() { return grid.signs.used > 0 ? grid.signs : grid.shift; }
  static constexpr int bits_every = grid.signs.used > 0 ? 8 : grid.shift_every;
  static constexpr BitOf bit(int j, bool across) {
    BitOf out;
    const Runs r = runs(j, 64, across);
    const Windows w = windows(bits(), 0, bits_every, j, across);
    for (int c = 0; c < 64; ++c) {
      const int l = c / 16, e = r.first[l] + c % 16;
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
  static constexpr bool can_gather(bool across) {
    if (grid.index.pieces(0) > 2 || bits().pieces(0) != 1 || !fits(bits(), 0, bits_every, across)) return false;
    for (int k = 0; k < grid.index.pieces(0); ++k) {
      if (!fits(grid.index, k, grid.width, across)) return false;
    }
    return true;
  }
};

}  // namespace fewbit
