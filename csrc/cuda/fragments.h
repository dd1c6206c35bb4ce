// Granules decoded in registers to f16, as the fragments of mma.m16n8k16: rows of weights are its rows, tokens its
// columns. The order of k is that of the granules: lane l holds granule l % 4 of row l / 4.
//
// Scales are multiplied by `gain`, a power of two of the tensor that keeps decoded weights in the middle of what f16
// can hold; whoever stores results takes it away again.
#pragma once
#include "epilogue.h"

namespace fewbit {

__device__ __forceinline__ uint32_t subtract2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ uint32_t both(float f) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(r) : "f"(f));
  return r;
}
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Scales and offsets of the two halves of a granule, each twice in a word.
struct Scales {
  uint32_t s[2], m[2];
};
template <class T, int half>
__device__ __forceinline__ void find_scales(const Raw& r, float gain, Scales& out) {
  const float d = scale_of<T, half>(r) * gain;
  out.s[half] = both(d * static_cast<float>(small_scale<T, half>(r)));
  if constexpr (T::offset) {
    const float m = (T::offset_real ? offset_of<T>(r) * gain : d) * T::Record::offset_sign;
    out.m[half] = both(m * static_cast<float>(small_offset<T, half>(r)));
  }
}
template <class T>
__device__ __forceinline__ Scales find_scales(const Raw& r, float gain) {
  Scales out = {};
  find_scales<T, 0>(r, gain, out);
  if constexpr (T::halves)
    find_scales<T, 1>(r, gain, out);
  else
    out.s[1] = out.s[0], out.m[1] = out.m[0];
  return out;
}

// Values 4 t to 4 t + 3 of a granule. A byte below an exponent of 2^10 is an f16 of 1024 + code.
template <class T, int t>
__device__ __forceinline__ void decode4(const Raw& r, const Scales& k, uint32_t& lo, uint32_t& hi) {
  uint32_t w = codes4<T, t>(r);
  if constexpr (T::is_signed) w ^= 0x80808080u;
  constexpr int zero = T::times != 1 ? 0 : T::zero + (T::is_signed ? 128 : 0);
  constexpr uint32_t bias = (0x6400u + zero) * 0x10001u;
  lo = subtract2(__byte_perm(w, 0x64646464u, 0x4140), bias);
  hi = subtract2(__byte_perm(w, 0x64646464u, 0x4342), bias);
  if constexpr (T::times != 1) {  // 2 code - 1
    static_assert(T::times == 2 && T::zero == 1);
    lo = fma2(lo, 0x40004000u, 0xBC00BC00u);
    hi = fma2(hi, 0x40004000u, 0xBC00BC00u);
  }
  if constexpr (T::offset) {
    lo = fma2(lo, k.s[t / 4], k.m[t / 4]);
    hi = fma2(hi, k.s[t / 4], k.m[t / 4]);
  } else {
    lo = multiply2(lo, k.s[t / 4]);
    hi = multiply2(hi, k.s[t / 4]);
  }
}

// Values 8 s to 8 s + 7 of the granules of two row tiles, as the left sides of two products.
template <class T, int s>
__device__ __forceinline__ void decode_fragment(const Raw (&raw)[2], const Scales (&k)[2], uint32_t (&a)[8]) {
  decode4<T, 2 * s>(raw[0], k[0], a[0], a[2]);
  decode4<T, 2 * s>(raw[1], k[1], a[1], a[3]);
  decode4<T, 2 * s + 1>(raw[0], k[0], a[4], a[6]);
  decode4<T, 2 * s + 1>(raw[1], k[1], a[5], a[7]);
}

// Those times those of NT tiles of 8 tokens.
template <class T, int NT, int s>
__device__ __forceinline__ void multiply_fragment(const Raw (&raw)[2], const Scales (&k)[2], const uint4 (&b)[NT],
                                                  float (&acc)[NT][4]) {
  uint32_t a[8];
  decode_fragment<T, s>(raw, k, a);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    mma(acc[n], a[0], a[1], a[2], a[3], b[n].x, b[n].y);
    mma(acc[n], a[4], a[5], a[6], a[7], b[n].z, b[n].w);
  }
}

// Rows of x as fragments, [tile column][s][token tile][lane][8] in f16: token lane / 4, granule lane % 4, values 8 s to
// 8 s + 7; or as panels, [tile column][panel][s][c][token tile][lane][2], values 8 s + 2 c and the next
// (activations.h). `scales` undo what was done to each token, none: nothing was; `tiles` of 8 tokens lie beside each
// other.
struct Tokens {
  const uint4* x;
  const float* scales;
  int count, tiles;

  __device__ __forceinline__ float scale(int token) const { return scales ? scales[token] : 1.0f; }
  __device__ __forceinline__ float2 scale_two(int token) const {  // of an even one and the next
    return scales ? reinterpret_cast<const float2*>(scales)[token / 2] : float2{1.0f, 1.0f};
  }
};

// What a lane stores of a pair of row tiles, the first of which is `tile`: two rows, or the one that they make if
// gated.
template <class T, class E>
struct PairRows {
  const Tokens& x;
  const Result& out;
  float down, scale[2], bias[2];
  int at;
  bool real[2];

  __device__ __forceinline__ PairRows(const Matrix& m, const Tokens& tokens, const Result& result, int tile, int row)
      : x(tokens), out(result), down(m.down), at((E::is_gated ? tile / 2 : tile) * 8 + row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      real[i] = at + (E::is_gated ? 0 : 8 * i) < m.n;
      scale[i] = real[i] ? row_scale<T>(m.planes, (tile + i) * 8 + row) : 0.0f;
      bias[i] = !E::is_gated && real[i] && out.bias ? out.bias[at + 8 * i] : 0.0f;
    }
  }

  // v: of both tiles for a token, whose scale is `up`.
  __device__ __forceinline__ void store(int token, float up, float a, float b) const {
    if (token >= x.count) return;
    const float v[2] = {a * (down * up * scale[0]), b * (down * up * scale[1])};
    float* y = out.y + static_cast<size_t>(token) * out.stride + at;
    if constexpr (E::is_gated) {
      if (real[0]) *y = E::join(v[0], v[1]);
    } else {
      const float* more = out.residual + static_cast<size_t>(token) * out.residual_stride + at;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (real[i]) y[8 * i] = v[i] + (out.residual ? bias[i] + more[8 * i] : bias[i]);
    }
  }
};

}  // namespace fewbit
