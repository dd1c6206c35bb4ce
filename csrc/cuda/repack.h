// Rows as they lie in files -> tiles, by the record: a thread a granule. Padding stays as it is: zeros.
#pragma once
#include "tile.h"

namespace fewbit {

// Where the fields of a row are whose fields lie apart.
struct RowFields {
  int row_bytes, field_at[2];
};

// The bits of a small integer, without its zero.
__device__ __forceinline__ uint32_t raw_bits(const Ints& what, const uint8_t* p, int i) {
  uint32_t code = 0;
  const int pieces = what.pieces(i);
  for (int k = 0; k < pieces; ++k) code |= read_piece(p, what.piece(k, i));
  return code;
}

template <class T>
__device__ __forceinline__ void pack_codes(const uint8_t* p, int first, int count, uint32_t (&w0)[8],
                                           uint32_t (&w1)[2]) {
  for (int i = 0; i < count; ++i) {
    const uint32_t c = raw_bits(T::Record::codes, p, first + i) ^ (T::shifted ? 128 : 0);
    const int t = i / 4, byte = 8 * (i % 4);
    if constexpr (T::book) {
      w0[i / 8] |= c << (4 * (i % 8));
    } else {
      w0[t % T::P0] |= (c & ((1 << T::P0) - 1)) << (byte + (T::P0 < 8 ? T::P0 * (t / T::P0) : 0));
      if constexpr (T::P1 > 0) w1[t % T::P1] |= (c >> T::P0) << (byte + T::P1 * (t / T::P1));
    }
  }
}

// The small integers of group g, as they are kept.
template <class T>
__device__ __forceinline__ uint32_t pack_smalls(const uint8_t* p, int g) {
  using R = typename T::Record;
  uint32_t s = 0;
  if constexpr (T::scale_ints) s = read_int(R::scale.ints, p, g) & 255;
  if constexpr (T::offset_ints) s |= (read_int(R::offset.ints, p, g) & 255) << (T::nibbles ? 4 : T::scale_ints ? 8 : 0);
  return s;
}

template <class T>
struct Source {
  const uint8_t *codes, *smalls, *scale, *offset;
  int first, group;  // of the granule in `codes`, and its first group in `smalls`
};

template <class T>
__device__ __forceinline__ Source<T> find_granule(const uint8_t* data, const RowFields& at, int row, int g) {
  using R = typename T::Record;
  constexpr int G = T::group;
  if constexpr (R::placement == Placement::block) {
    const uint8_t* p =
        data + static_cast<size_t>(row) * at.row_bytes + static_cast<size_t>(g * 32 / R::block) * R::bytes;
    const int first = g * 32 % R::block, group = first / G;
    const int real = T::scale_ints ? 0 : group * real_bytes(R::scale.real);
    return {p, p, p + R::scale.at + real, p + R::offset.at + real, first, group};
  } else {
    const uint8_t* p = data + static_cast<size_t>(row) * at.row_bytes;
    const int group = G ? g * 32 / (G ? G : 1) : 0, size = real_bytes(R::scale.real);
    return {p,
            p + at.field_at[T::offset_ints ? R::offset.ints_at : 0],
            p + at.field_at[R::scale.at] + group * size,
            p + at.field_at[R::offset.at] + group * size,
            g * 32,
            group};
  }
}

template <class T>
__device__ __forceinline__ void repack_scales(const Source<T>& from, const Planes& out, size_t index, uint32_t* range,
                                              int most) {
  using R = typename T::Record;
  uint8_t* d = out.scales + T::scale_bytes * index;
  for (int i = 0; i < T::real_size; ++i) d[i] = from.scale[i];
  if constexpr (T::offset_real)
    for (int i = 0; i < T::real_size; ++i) d[T::real_size + i] = from.offset[i];
  float size = magnitude(read_real(R::scale.real, d)) * static_cast<float>(most);
  if constexpr (T::real_halves)
    size = Larger()(size, magnitude(read_real(R::scale.real, d + 1)) * static_cast<float>(most));
  if constexpr (T::offset_real)
    size += magnitude(read_real(R::scale.real, d + T::real_size)) * (T::offset_ints ? 64.0f : 1.0f);
  if (size < 3.0e38f) atomicMax(range, __float_as_uint(size));  // a maximum is the same in any order
}

// Where rows go: row r of the data is row `row` + r of its matrix, whose tiles are every `step`-th from `tile` on.
struct Destination {
  int row, tile, step;
};

template <class T>
__device__ __forceinline__ void repack(const uint8_t* data, const Planes& out, const RowFields& at,
                                       const Destination& to, int n, int k, int Q, uint32_t* range) {
  using R = typename T::Record;
  const size_t id = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const int from_row = static_cast<int>(id / (4 * Q)), g = static_cast<int>(id % (4 * Q));
  const int row = to.row + from_row, tile = row / 8 * to.step + to.tile;
  if (from_row >= n) return;
  const bool real = g * 32 < k;
  const size_t t = static_cast<size_t>(tile) * Q + g / 4, lane = row % 8 * 4 + g % 4, place = t * 32 + lane;
  uint32_t w0[8] = {}, w1[2] = {}, smalls = 0;
  Source<T> from = {};
  if (real) {
    from = find_granule<T>(data, at, from_row, g);
    pack_codes<T>(from.codes, from.first, R::placement == Placement::row && k - g * 32 < 32 ? k - g * 32 : 32, w0, w1);
    if constexpr (T::small_bytes > 0 && R::placement == Placement::block) {
      smalls = pack_smalls<T>(from.smalls, from.group);
      if constexpr (T::halves) smalls |= pack_smalls<T>(from.smalls, from.group + 1) << 8;
    } else if constexpr (T::small_bytes > 0) {
      smalls = from.smalls[from.group];
    }
  }
  uint32_t* q0 = reinterpret_cast<uint32_t*>(out.q0);
  for (int i = 0; i < T::P0; ++i) {
    if constexpr (T::P0 == 8)
      q0[(place + t * 32 + i / 4 * 32) * 4 + i % 4] = w0[i];
    else
      q0[place * T::P0 + i] = w0[i];
  }
  for (int i = 0; i < T::P1; ++i) reinterpret_cast<uint32_t*>(out.q1)[place * T::P1 + i] = w1[i];
  for (int i = 0; i < T::small_bytes; ++i)
    out.smalls[place * T::small_bytes + i] = static_cast<uint8_t>(smalls >> (8 * i));
  constexpr int most = T::book ? 127 : 1 << (T::bits - (T::is_signed ? 1 : 0));
  if (real && (T::per == 0 ? g == 0 : g % (T::per ? T::per : 1) == 0))
    repack_scales<T>(from, out, scale_index<T>(Q, tile, row % 8, g), range, most * (T::scale_ints ? 64 : 1));
}

}  // namespace fewbit
