// Formats that stay as they lie in files (grids, base-3 digits, uneven groups, plain numbers): a granule of 32 values
// is read by its record, one element at a time. Slow, and it runs everything.
#pragma once
#include "epilogue.h"
#include "repack.h"

namespace fewbit {

template <class R>
__device__ __forceinline__ int read_grid(const uint8_t* p, int i) {
  constexpr const Grid& grid = R::codes;
  int code = R::points.values[read_int(grid.index, p, i / grid.width)][i % grid.width];
  if constexpr (grid.signs.used > 0) {
    int signs = read_int(grid.signs, p, i / 8);
    if constexpr (grid.signs.bits() == 7) signs |= (__popc(signs) & 1) << 7;
    if (signs >> (i % 8) & 1) code = -code;
  }
  if constexpr (grid.shift.used > 0) code = 8 * code + 1 - 2 * read_int(grid.shift, p, i / grid.shift_every);
  return code;
}

template <class R>
__device__ __forceinline__ int read_trit(const uint8_t* p, int i) {
  for (const TritPart& part : R::codes.parts) {
    const int size = part.bytes * part.digits;
    if (i < size) {
      int b = p[part.first + i % part.bytes];
      for (int n = i / part.bytes; n > 0; --n) b *= 3;
      return ((b & 255) * 3 >> 8) - 1;
    }
    i -= size;
  }
  return 0;
}

template <class R>
__device__ __forceinline__ float block_scale(const uint8_t* p, int group) {
  constexpr const Factor& f = R::scale;
  float v;
  if constexpr (f.bits.used > 0)
    v = half_bits(read_int(f.bits, p, 0));
  else
    v = read_real(f.real, p + f.at);
  if constexpr (f.ints.used > 0) v = __fmul_rn(v, static_cast<float>(read_int(f.ints, p, group)));
  return v * f.unit;
}

// One value of a row of k values; `group` values share a scale.
template <class R>
__device__ __forceinline__ float read_value(const uint8_t* row, const RowFields& at, int group, int i) {
  if constexpr (R::kind == Kind::scalar) {
    return read_real(R::real, row + static_cast<size_t>(i) * R::bytes);
  } else if constexpr (R::kind == Kind::planes) {
    static_assert(R::placement == Placement::row);
    const Layout fields = {0, {static_cast<size_t>(at.field_at[0]), static_cast<size_t>(at.field_at[1]), 0}};
    const float v =
        __fmul_rn(static_cast<float>(read_int(R::codes, row, i)), read_row_factor(R::scale, fields, row, i / group));
    if constexpr (!R::offset.present)
      return v;
    else
      return __fadd_rn(v, R::offset_sign * read_row_factor(R::offset, fields, row, i / group));
  } else {
    const uint8_t* p = row + static_cast<size_t>(i / R::block) * R::bytes;
    const int e = i % R::block;
    const int code = [&] {
      if constexpr (R::kind == Kind::grid)
        return read_grid<R>(p, e);
      else
        return read_trit<R>(p, e);
    }();
    return __fmul_rn(static_cast<float>(code), block_scale<R>(p, e / R::group));
  }
}

// y = W x: a warp a row of weights and a row of x, in f32. Blocks of all rows of weights for each row of x: either may
// be more than the other dimensions of a grid have room for.
template <class R>
__device__ __forceinline__ void gemv_rows(const uint8_t* data, const RowFields& at, int group, const float* x,
                                          int x_stride, const Result& out, int n, int k) {
  start_next();
  wait_for_previous();
  const int warps = blockDim.x / 32, blocks = (n + warps - 1) / warps, token = blockIdx.x / blocks;
  const int lane = threadIdx.x % 32, row = blockIdx.x % blocks * warps + threadIdx.x / 32;
  if (row >= n) return;
  const uint8_t* w = data + static_cast<size_t>(row) * at.row_bytes;
  const float* own = x + static_cast<size_t>(token) * x_stride;
  float sum = 0;
  for (int i = lane; i < k; i += 32) sum += read_value<R>(w, at, group, i) * own[i];
  sum = reduce_warp(sum, Added());
  if (lane == 0) out.store(token, row, sum);
}

// Rows -> f32, f16 or bf16, rows of `width` values, padded with zeros: a thread a value.
template <class R, Real Y>
__device__ __forceinline__ void decode_rows(const uint8_t* data, const RowFields& at, int group, void* out, int n,
                                            int k, int width) {
  wait_for_previous();
  const size_t place = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (place >= static_cast<size_t>(n) * width) return;
  const int i = static_cast<int>(place % width);
  const uint8_t* row = data + place / width * at.row_bytes;
  put<Y>(out, place, i < k ? read_value<R>(row, at, group, i) : 0.0f);
}

// The largest magnitude of all values, as bits, which are ordered as the values are, NaN last: a block a row.
template <class R>
__device__ __forceinline__ void find_largest(const uint8_t* data, const RowFields& at, int group, uint32_t* largest,
                                             int k) {
  wait_for_previous();
  const uint8_t* row = data + static_cast<size_t>(blockIdx.x) * at.row_bytes;
  float most = 0;
  for (int i = threadIdx.x; i < k; i += blockDim.x) most = Larger()(magnitude(read_value<R>(row, at, group, i)), most);
  most = reduce_block(most, Larger());
  if (threadIdx.x == 0) atomicMax(largest, __float_as_uint(most));
}

}  // namespace fewbit
