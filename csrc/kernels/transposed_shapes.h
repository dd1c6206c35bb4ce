// Where the codes and the scales of a k-block lie for kernels that read as many rows as a vector has lanes side by
// side: 16-byte windows of every row become four vectors, each with one dword of every row. Computed from the record
// while compiling; holds no instruction and no format name.
#pragma once
#include "kernels/shapes.h"

namespace fewbit {

// Sixteen-byte windows of a k-block, as few as cover what is needed.
struct Cover {
  int at[64] = {}, used = 0;

  constexpr int window(int byte, int align) const {
    for (int w = 0; w < used; ++w) {
      if (byte >= at[w] && byte + align <= at[w] + 16 && (byte - at[w]) % align == 0) return w;
    }
    return -1;
  }
  // `align` 4: the byte is the first of a dword of its window; 1: it may be any.
  constexpr void add(int byte, int align, int room) {
    if (window(byte, align) >= 0) return;
    int from = byte;
    while (from + 16 > room) from -= align;
    at[used++] = from;
  }
};

// How four neighbouring values lie in one piece of their codes: in the four bytes of a dword, all shifted alike; or as
// four neighbouring bits of one of its bytes.
struct Quad {
  int window = 0, dword = 0, byte = 0, shift = 0;
};

template <class F>
struct TransposedShape {
  using S = Shape<F>;
  static constexpr int quads = kBlockK / 4;
  static constexpr int room = S::k_block_bytes();

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
      if (pieces() > 3 || room < 16) return false;
      for (int k = 0; k < pieces(); ++k) {
        if (!in_bytes(k) && !(k > 0 && in_bits(k))) return false;
      }
      return true;
    } else {
      return false;
    }
  }
  static constexpr Cover cover(int k) {
    Cover out;
    for (int q = 0; q < quads; ++q) out.add(S::piece(k, 4 * q).bit / 8, in_bytes(k) ? 4 : 1, room);
    return out;
  }
  static constexpr std::array<Quad, quads> quads_of(int k) {
    std::array<Quad, quads> out{};
    const Cover c = cover(k);
    for (int q = 0; q < quads; ++q) {
      const int bit = S::piece(k, 4 * q).bit;
      out[q].window = c.window(bit / 8, in_bytes(k) ? 4 : 1);
      const int inside = bit / 8 - c.at[out[q].window];
      out[q].dword = inside / 4;
      out[q].byte = inside % 4;
      out[q].shift = bit % 8;
    }
    return out;
  }
  // The quads in an order in which each window is wanted only once, or nearly so.
  static constexpr std::array<int, quads> order() {
    std::array<int, quads> key{}, out{};
    for (int k = pieces() - 1; k >= 0; --k) {
      const auto of = quads_of(k);
      for (int q = 0; q < quads; ++q) key[q] = key[q] * 64 + of[q].window;
    }
    for (int q = 0; q < quads; ++q) {
      int i = q;
      for (; i > 0 && key[out[i - 1]] > key[q]; --i) out[i] = out[i - 1];
      out[i] = q;
    }
    return out;
  }
};

// Where the small scales and offsets of a block that fills a k-block lie, in the windows of `cover`.
template <class F>
struct TransposedFactors {
  static constexpr int room = Shape<F>::k_block_bytes(), groups = Shape<F>::groups;
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
    if (Shape<F>::row || F::block != kBlockK || F::scale.ints.used == 0 || F::scale.real != Real::f16 || room < 16)
      return false;
    if (F::scale.bits.used > 0 || F::scale.at % 2 != 0) return false;
    if (offset && (F::offset.ints.used == 0 || F::offset.real != Real::f16 || F::offset.at % 2 != 0)) return false;
    if (offset && F::offset.ints.pieces(0) > 2) return false;
    return F::scale.ints.pieces(0) <= 2 && in_bytes(F::scale.ints) && (!offset || in_bytes(F::offset.ints));
  }
  static constexpr Cover cover() {
    Cover out;
    int low = F::scale.at, high = low + 2;
    const auto reach = [&](int byte) {
      low = byte < low ? byte : low;
      high = byte + 1 > high ? byte + 1 : high;
    };
    const auto each = [&](auto&& f) {
      for (int g = 0; g < groups; ++g) {
        for (int k = 0; k < F::scale.ints.pieces(g); ++k) f(F::scale.ints.piece(k, g).bit / 8);
        for (int k = 0; offset && k < F::offset.ints.pieces(g); ++k) f(F::offset.ints.piece(k, g).bit / 8);
      }
      f(F::scale.at);
      f(F::scale.at + 1);
      if (offset) f(F::offset.at), f(F::offset.at + 1);
    };
    each(reach);
    if (high - low <= 16) out.add(low % 2 == F::scale.at % 2 ? low : low - 1, 1, room);
    each([&](int byte) { out.add(byte, 1, room); });
    return out;
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
    return TransposedShape<F>::fits() && F::scale.real == Real::f32 && F::scale.ints.used == 0 &&
           (!F::offset.present || (F::offset.real == Real::f32 && F::offset.ints.used == 0));
  } else {
    const int left = Shape<F>::k_block_bytes() % 4;  // an f16 of every row
    if (left != 0 && (left != 2 || F::block != kBlockK || F::scale.at + 2 != F::bytes)) return false;
    return TransposedShape<F>::fits() &&
           (TransposedFactors<F>::fits() || Slots<F, 16>::is_strided() || Slots<F, 16>::is_quads());
  }
}

}  // namespace fewbit
