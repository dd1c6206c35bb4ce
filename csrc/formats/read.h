// Reads a block by its record, one element at a time. Kernels use it where they have no faster way.
#pragma once
#include "formats/geometry.h"
#include "formats/real.h"

namespace fewbit {

inline int read_piece(const uint8_t* p, Piece at) {
  const int byte = at.bit >> 3, shift = at.bit & 7;
  int word = p[byte];
  if (shift + at.bits > 8) word |= p[byte + 1] << 8;
  return (word >> shift & ((1 << at.bits) - 1)) << at.dst;
}

inline int read_int(const Ints& what, const uint8_t* p, int i) {
  int code = 0;
  const int pieces = what.pieces(i);
  for (int k = 0; k < pieces; ++k) code |= read_piece(p, what.piece(k, i));
  if (what.is_signed) return code - ((code >> (what.bits() - 1)) << what.bits());
  return what.times * code - what.zero;
}

inline int read_trit(const Trits& what, const uint8_t* p, int i) {
  for (const TritPart& part : what.parts) {
    if (i < part.bytes * part.digits) {
      unsigned b = p[part.first + i % part.bytes];
      for (int n = i / part.bytes; n > 0; --n) b = b * 3 & 255;
      return static_cast<int>(b * 3 >> 8) - 1;
    }
    i -= part.bytes * part.digits;
  }
  return 0;
}

// All codes of a block of a grid format.
template <class F>
inline void read_grid(const uint8_t* p, int8_t* out) {
  constexpr const Grid& grid = F::codes;
  for (int i = 0; i < F::block / grid.width; ++i) {
    std::memcpy(out + i * grid.width, grid.points + read_int(grid.index, p, i) * grid.width, grid.width);
  }
  if constexpr (grid.signs.used > 0) {
    for (int i = 0; i < F::block / 8; ++i) {
      unsigned signs = static_cast<unsigned>(read_int(grid.signs, p, i));
      if constexpr (grid.signs.bits() == 7) signs |= (__builtin_popcount(signs) & 1u) << 7;
      for (int b = 0; b < 8; ++b)
        out[8 * i + b] = static_cast<int8_t>(signs >> b & 1 ? -out[8 * i + b] : out[8 * i + b]);
    }
  }
  if constexpr (grid.shift.used > 0) {
    for (int i = 0; i < F::block / grid.shift_every; ++i) {
      const int delta = 1 - 2 * read_int(grid.shift, p, i);
      for (int b = 0; b < grid.shift_every; ++b) {
        int8_t& c = out[i * grid.shift_every + b];
        c = static_cast<int8_t>(8 * c + delta);
      }
    }
  }
}

// The number of element i that is multiplied by the scale.
template <class F>
inline int read_code(const uint8_t* p, int i) {
  if constexpr (F::kind == Kind::trits) {
    return read_trit(F::codes, p, i);
  } else {
    const int code = read_int(F::codes, p, i);
    if constexpr (F::codebook.used > 0) return F::codebook.values[code];
    return code;
  }
}

// The scale or the offset (without its sign) of group g of a block.
inline float read_factor(const Factor& f, const uint8_t* p, int g) {
  float v;
  if (f.bits.used > 0) {
    v = f16_to_f32(static_cast<uint16_t>(read_int(f.bits, p, 0)));
  } else {
    v = read_real(f.real, p + f.at + (f.ints.used > 0 ? 0 : g * real_bytes(f.real)));
  }
  if (f.ints.used > 0) v *= static_cast<float>(read_int(f.ints, p, g));
  return v * f.unit;
}

// The same for a row whose fields lie apart.
inline float read_row_factor(const Factor& f, const Layout& at, const uint8_t* row, size_t g) {
  float v = read_real(f.real, row + at.field_at[f.at] + g * real_bytes(f.real));
  if (f.ints.used > 0) {
    const int code = row[at.field_at[f.ints_at] + g];
    v *= static_cast<float>(f.ints.is_signed ? static_cast<int8_t>(code) : code - f.ints.zero);
  }
  return v * f.unit;
}

template <class F>
Layout layout(size_t k, size_t group) {
  Layout l;
  if constexpr (F::placement == Placement::block) {
    l.row_bytes = (k + F::block - 1) / F::block * F::bytes;
    l.group = F::group;
  } else {
    const size_t padded = (k + kGranule - 1) / kGranule * kGranule, per_group = group ? group : k ? k : 1;
    const size_t groups = (k + per_group - 1) / per_group;
    size_t at = padded * F::codes.bits() / 8;
    l.field_at[0] = at;
    at += groups * real_bytes(F::scale.real);
    l.field_at[1] = at;
    if constexpr (F::offset.present) at += groups * (F::offset.ints.used > 0 ? 1 : real_bytes(F::offset.real));
    l.row_bytes = at;
    l.group = per_group;
    if ((per_group & (per_group - 1)) == 0) l.shift = __builtin_ctzll(per_group);
  }
  return l;
}

}  // namespace fewbit
