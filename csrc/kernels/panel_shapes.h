// Whether and how a k-block of 16 interleaved rows can be read, a row in each lane: see kernels/interleaved.h. Computed
// from the record while compiling; holds no instruction and no format name.
#pragma once
#include "kernels/shapes.h"

namespace fewbit {

// How four neighbouring codes lie: in the four bytes of a dword, all shifted alike, or as four neighbouring bits of one
// of its bytes.
template <class F>
struct PanelCodes {
  using S = Shape<F>;

  static constexpr int pieces() {
    if constexpr (F::kind == Kind::planes)
      return F::codes.pieces(0);
    else
      return 0;
  }
  static constexpr bool neighbours(int k, int step) {
    for (int e = 0; e < kBlockK; ++e) {
      if (S::piece(k, e).bit != S::piece(k, e / 4 * 4).bit + e % 4 * step) return false;
    }
    return true;
  }
  static constexpr bool in_bytes(int k) { return neighbours(k, 8); }
  static constexpr bool in_bits(int k) {
    if (S::piece(k, 0).bits != 1 || !neighbours(k, 1)) return false;
    for (int e = 0; e < kBlockK; e += 4) {
      if (S::piece(k, e).bit % 8 > 4) return false;
    }
    return true;
  }
  static constexpr bool fits() {
    if constexpr (F::kind == Kind::planes) {
      if (pieces() > 3) return false;
      for (int k = 0; k < pieces(); ++k) {
        if (!in_bytes(k) && !(k > 0 && in_bits(k))) return false;
      }
      return true;
    } else {
      return false;
    }
  }
};

// Whether the small scales and offsets of a block that fills a k-block can be read.
template <class F>
struct PanelFactors {
  static constexpr int groups = Shape<F>::groups;
  static constexpr bool offset = F::offset.present;

  static constexpr bool in_bytes(const Ints& what) {
    for (int g = 0; g < groups; ++g) {
      for (int k = 0; k < what.pieces(g); ++k) {
        if (what.piece(k, g).bit % 8 + what.piece(k, g).bits > 8) return false;
      }
    }
    return !what.is_signed || what.bits() == 8;
  }
  static constexpr bool fits() {
    if (Shape<F>::row || F::block != kBlockK || F::scale.ints.used == 0 || F::scale.real != Real::f16) return false;
    if (F::scale.bits.used > 0 || F::scale.at % 2 != 0) return false;
    if (offset && (F::offset.ints.used == 0 || F::offset.real != Real::f16 || F::offset.at % 2 != 0)) return false;
    if (offset && F::offset.ints.pieces(0) > 2) return false;
    return F::scale.ints.pieces(0) <= 2 && in_bytes(F::scale.ints) && (!offset || in_bytes(F::offset.ints));
  }
};

// An index for shuffles of 16 bytes: in every dword its bytes in another order, -1: zero.
template <int a, int b, int c, int d>
constexpr std::array<int8_t, 16> picked_bytes() {
  std::array<int8_t, 16> out{};
  const int from[4] = {a, b, c, d};
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int8_t>(from[i % 4] < 0 ? -1 : i / 4 * 4 + from[i % 4]);
  return out;
}

// After `period` groups of a k-block all lies as before, `step` bytes further on: one loop does for all of them. Only
// where no scale of a super-block comes after.
template <class F>
struct Repeats {
  using S = Shape<F>;

  static constexpr int factor_at(const Factor& f, int g) {  // block placement
    const int value = g * S::group_size;
    return value / F::block * F::bytes + f.at + value % F::block / F::group * real_bytes(f.real);
  }
  static constexpr bool after(int count) {
    const int step = S::k_block_bytes() * count / S::groups, values = count * S::group_size;
    if (S::k_block_bytes() * count % S::groups != 0 || step % 4 != 0) return false;
    for (int e = 0; e + values < kBlockK; ++e) {
      for (int k = 0; k < F::codes.pieces(0); ++k) {
        if (S::piece(k, e + values).bit != S::piece(k, e).bit + 8 * step) return false;
      }
    }
    for (int g = 0; g + count < S::groups && !S::row; ++g) {
      if (factor_at(F::scale, g + count) != factor_at(F::scale, g) + step) return false;
      if (F::offset.present && factor_at(F::offset, g + count) != factor_at(F::offset, g) + step) return false;
    }
    return true;
  }
  static constexpr int period() {
    if (F::scale.ints.used > 0 || (!S::row && F::group == kBlockK)) return S::groups;
    int count = 1;
    while (count < S::groups && (S::groups % count != 0 || !after(count))) ++count;
    return count;
  }
};

// Whether rows can be interleaved, 16 of them: of every k-block four bytes of each row, then the next four, and so on.
// See kernels/interleaved.h.
template <class F>
constexpr bool can_interleave() {
  if constexpr (F::kind != Kind::planes) {
    return false;
  } else if constexpr (Shape<F>::row) {
    return PanelCodes<F>::fits() && F::scale.real == Real::f32 && F::scale.ints.used == 0 &&
           (!F::offset.present || (F::offset.real == Real::f32 && F::offset.ints.used == 0));
  } else {
    const int left = Shape<F>::k_block_bytes() % 4;  // an f16 of every row
    if (left != 0 && (left != 2 || F::block != kBlockK || F::scale.at + 2 != F::bytes)) return false;
    return PanelCodes<F>::fits() && (PanelFactors<F>::fits() || Slots<F, 16>::is_strided() || Slots<F, 16>::is_quads());
  }
}

// Rows of a multiple of so many values can be interleaved; 0: none.
template <class F>
constexpr size_t interleaved_values() {
  if constexpr (!can_interleave<F>())
    return 0;
  else
    return Shape<F>::row ? kBlockK : static_cast<size_t>(Repeats<F>::period() * Shape<F>::group_size);
}

}  // namespace fewbit
