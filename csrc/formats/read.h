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

// The scale or the offset (without its sign) of group g of a row whose fields lie apart.
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
