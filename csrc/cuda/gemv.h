// y = W x for one row of x in 8 bits, or in 16 as two parts of 8: integer dot products of codes from the tiles.
//
// A block has WR x WK warps; a warp takes TR row tiles and every WK-th column of tiles, U of them in flight. The first
// U are prefetched before the kernel before has ended.
#pragma once
#include "epilogue.h"

namespace fewbit {

template <class T, int half>
__device__ __forceinline__ int dot16(const Raw& r, const int4& x, int sum) {
  sum = __dp4a(static_cast<int>(codes4<T, 4 * half>(r)), x.x, sum);
  sum = __dp4a(static_cast<int>(codes4<T, 4 * half + 1>(r)), x.y, sum);
  sum = __dp4a(static_cast<int>(codes4<T, 4 * half + 2>(r)), x.z, sum);
  return __dp4a(static_cast<int>(codes4<T, 4 * half + 3>(r)), x.w, sum);
}
template <class T>
__device__ __forceinline__ int less_zero(int dot, int sum) {
  if constexpr (T::times != 1) dot *= T::times;
  if constexpr (T::zero != 0) dot -= T::zero * sum;
  return dot;
}

// A granule times 8-bit x; xm: the scale of x, and its two sums of 16.
template <class T>
__device__ __forceinline__ float dot_granule(const Raw& r, const int4& x0, const int4& x1, const int2& xm) {
  constexpr int sign = T::Record::offset_sign;
  const float dx = __int_as_float(xm.x);
  const int s0 = static_cast<int16_t>(xm.y), s1 = xm.y >> 16;
  if constexpr (T::halves) {
    const int a = less_zero<T>(dot16<T, 0>(r, x0, 0), s0), b = less_zero<T>(dot16<T, 1>(r, x1, 0), s1);
    if constexpr (T::real_halves) {
      return (static_cast<float>(a) * scale_of<T, 0>(r) + static_cast<float>(b) * scale_of<T, 1>(r)) * dx;
    } else {
      float f = static_cast<float>(a * small_scale<T, 0>(r) + b * small_scale<T, 1>(r)) * scale_of<T>(r);
      if constexpr (T::offset)
        f += static_cast<float>(sign * (s0 * small_offset<T, 0>(r) + s1 * small_offset<T, 1>(r))) * offset_of<T>(r);
      return f * dx;
    }
  } else {
    const int sum = s0 + s1;
    int i = less_zero<T>(dot16<T, 1>(r, x1, dot16<T, 0>(r, x0, 0)), sum);
    if constexpr (T::scale_ints) i *= small_scale<T>(r);
    if constexpr (T::offset && !T::offset_real) i += sign * small_offset<T>(r) * sum;
    float f = static_cast<float>(i) * scale_of<T>(r);
    if constexpr (T::offset_real) f += static_cast<float>(sign * sum * small_offset<T>(r)) * offset_of<T>(r);
    return f * dx;
  }
}

// x: [part][granule][32], xm: [part][granule]; Q: tiles along k.
template <class T, class E, int Q, int WR, int WK, int U, int TR, int parts>
__device__ __forceinline__ void gemv_block(const Matrix& m, const int4* x, const int2* xm, const Result& out, int block,
                                           float (*part)[TR][8]) {
  constexpr int steps = (Q + WK * U - 1) / (WK * U), results = E::is_gated ? TR * 4 : TR * 8;  // of a warp
  constexpr bool even = Q % (WK * U) == 0;
  static_assert(results <= 32 * WK && (!E::is_gated || TR % 2 == 0));
  const Planes& p = m.planes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp % WK;
  const int last = last_tile<E>(m.n), tile = (block * WR + warp / WK) * TR;
  start_next();
  Raw raw[U][TR];
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int t = 0; t < TR; ++t)
      if (even || first + u * WK < Q)
        raw[u][t] = load_granule<T>(p, Q, tile + t < last ? tile + t : last, first + u * WK, lane);
  const int own = threadIdx.x / results, at = threadIdx.x % results, row = (block * WR + own) * results + at;
  const bool writes = own < WR && row < m.n;
  wait_for_previous();
  const float added = writes ? out.added(0, row) : 0.0f;
  float acc[TR] = {};
#pragma unroll
  for (int i = 0; i < steps; ++i)
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int q = first + (i * U + u) * WK, next = q + U * WK;
      if (!even && q >= Q) continue;
      const int g = q * 4 + lane % 4;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const int at = part * 4 * Q + g;
        const int4 x0 = load_input(x + 2 * at), x1 = load_input(x + 2 * at + 1);
        const int2 m = load_input(xm + at);
#pragma unroll
        for (int t = 0; t < TR; ++t) acc[t] += dot_granule<T>(raw[u][t], x0, x1, m);
      }
#pragma unroll
      for (int t = 0; t < TR; ++t)
        if (i + 1 < steps && (even || next < Q))
          raw[u][t] = load_granule<T>(p, Q, tile + t < last ? tile + t : last, next, lane);
    }
#pragma unroll
  for (int t = 0; t < TR; ++t) {
    acc[t] += __shfl_xor_sync(~0u, acc[t], 1);
    acc[t] += __shfl_xor_sync(~0u, acc[t], 2);
    if (lane % 4 == 0) part[warp][t][lane / 4] = acc[t];
  }
  __syncthreads();
  if (!writes) return;
  auto sum = [&](int t) {
    float v = 0;
#pragma unroll
    for (int w = 0; w < WK; ++w) v += part[own * WK + w][t][at % 8];
    return v * row_scale<T>(p, ((block * WR + own) * TR + t) * 8 + at % 8);
  };
  if constexpr (E::is_gated)
    out.put(0, row, E::join(sum(at / 8 * 2), sum(at / 8 * 2 + 1)) + added);
  else
    out.put(0, row, sum(at / 8) + added);
}

template <class T, class E, int Q, int WR, int WK, int U, int TR, int parts>
__device__ __forceinline__ void gemv(const Matrix& m, const int4* x, const int2* xm, const Result& out) {
  __shared__ float part[WR * WK][TR][8];
  gemv_block<T, E, Q, WR, WK, U, TR, parts>(m, x, xm, out, blockIdx.x, part);
}

// Two matrices of different formats that take the same x: the first `split` blocks have the first one, the results of
// the second begin at `column`.
template <class A, class B, class E, int Q, int WR, int WK, int U, int TR, int parts>
__device__ __forceinline__ void gemv_two(const Matrix& a, const Matrix& b, int split, int column, const int4* x,
                                         const int2* xm, const Result& out) {
  __shared__ float part[WR * WK][TR][8];
  const int block = blockIdx.x;
  if (block < split)
    gemv_block<A, E, Q, WR, WK, U, TR, parts>(a, x, xm, out, block, part);
  else
    gemv_block<B, E, Q, WR, WK, U, TR, parts>(b, x, xm, out.from(column), block - split, part);
}

}  // namespace fewbit
