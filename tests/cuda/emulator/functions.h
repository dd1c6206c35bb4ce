// CUDA's own functions, emulated: barriers, warp operations, atomics, conversions, arithmetic.
#pragma once
#include "emulate.h"

inline void __syncthreads() { emu::wait(emu::Wait::block, 0); }
inline void __syncwarp(uint32_t mask = ~0u) { emu::exchange(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
inline T __shfl_sync(uint32_t mask, T v, int from, int width = 32) {
  emu::exchange(mask, v);
  return emu::of<T>((emu::lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T v, int with, int = 32) {
  emu::exchange(mask, v);
  return emu::of<T>(emu::lane() ^ with);
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T v, int by, int width = 32) {
  emu::exchange(mask, v);
  const int lane = emu::lane(), to = lane + by;
  return (lane & (width - 1)) + by < width ? emu::of<T>(to) : v;
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T v, int by, int width = 32) {
  emu::exchange(mask, v);
  const int lane = emu::lane();
  return (lane & (width - 1)) >= by ? emu::of<T>(lane - by) : v;
}
inline uint32_t __ballot_sync(uint32_t mask, int p) {
  emu::exchange(mask, p != 0 ? 1 : 0);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) bits |= static_cast<uint32_t>(emu::of<int>(i) == 1) << i;
  return bits;
}
inline int __any_sync(uint32_t mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(uint32_t mask, int p) { return (__ballot_sync(mask, p) & mask) == mask; }
template <class T, class F>
inline T emu_reduce(uint32_t mask, T v, F f) {
  emu::exchange(mask, v);
  bool any = false;
  T out = v;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) out = any ? f(out, emu::of<T>(i)) : emu::of<T>(i), any = true;
  return out;
}
template <class T>
inline T __reduce_add_sync(uint32_t m, T v) {
  return emu_reduce(m, v, [](T a, T b) { return a + b; });
}
template <class T>
inline T __reduce_max_sync(uint32_t m, T v) {
  return emu_reduce(m, v, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
inline T __reduce_min_sync(uint32_t m, T v) {
  return emu_reduce(m, v, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
inline T __reduce_or_sync(uint32_t m, T v) {
  return emu_reduce(m, v, [](T a, T b) { return a | b; });
}
template <class T>
inline uint32_t __match_any_sync(uint32_t mask, T v) {
  emu::exchange(mask, v);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && emu::of<T>(i) == v) bits |= 1u << i;
  return bits;
}
inline int __syncthreads_or(int p) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  if (p) any = 1;
  __syncthreads();
  return any;
}
inline int __syncthreads_count(int p) {
  static int count;
  __syncthreads();
  count = 0;
  __syncthreads();
  if (p) ++count;
  __syncthreads();
  return count;
}

template <class T, class U>
inline T atomicAdd(T* p, U v) {
  T old = *p;
  *p = old + v;
  return old;
}
template <class T, class U>
inline T atomicSub(T* p, U v) {
  T old = *p;
  *p = old - v;
  return old;
}
template <class T, class U>
inline T atomicMax(T* p, U v) {
  T old = *p;
  if (static_cast<T>(v) > old) *p = v;
  return old;
}
template <class T, class U>
inline T atomicMin(T* p, U v) {
  T old = *p;
  if (static_cast<T>(v) < old) *p = v;
  return old;
}
template <class T, class U>
inline T atomicOr(T* p, U v) {
  T old = *p;
  *p = old | v;
  return old;
}
template <class T, class U>
inline T atomicExch(T* p, U v) {
  T old = *p;
  *p = v;
  return old;
}
template <class T, class U, class V>
inline T atomicCAS(T* p, U c, V v) {
  T old = *p;
  if (old == static_cast<T>(c)) *p = v;
  return old;
}
inline uint32_t atomicInc(uint32_t* p, uint32_t most) {
  uint32_t old = *p;
  *p = old >= most ? 0 : old + 1;
  return old;
}

template <class To, class From>
inline To emu_bits(From v) {
  To out;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&out, &v, sizeof(out));
  return out;
}
inline uint32_t __float_as_uint(float f) { return emu_bits<uint32_t>(f); }
inline int __float_as_int(float f) { return emu_bits<int>(f); }
inline float __uint_as_float(uint32_t u) { return emu_bits<float>(u); }
inline float __int_as_float(int i) { return emu_bits<float>(i); }
inline double __longlong_as_double(long long i) { return emu_bits<double>(i); }
inline long long __double_as_longlong(double d) { return emu_bits<long long>(d); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline float sigmoidf(float a) { return 1.0f / (1.0f + std::exp(-a)); }
inline int __float2int_rn(float f) { return static_cast<int>(std::nearbyint(f)); }
inline int __float2int_rd(float f) { return static_cast<int>(std::floor(f)); }
inline float __int2float_rn(int i) { return static_cast<float>(i); }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(static_cast<uint32_t>(v)) : 32; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline uint32_t __brev(uint32_t v) {
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t s) {
  return static_cast<uint32_t>((static_cast<uint64_t>(hi) << 32 | lo) >> (s & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t pick = s >> (4 * i) & 15;
    uint32_t byte = both >> (8 * (pick & 7)) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << (8 * i);
  }
  return out;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
template <class T>
inline void __stcg(T* p, T v) {
  *p = v;
}
template <class T>
inline void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
// Kernels keep these addresses in 32 bits: they are counted from `shared`.
inline uint64_t __cvta_generic_to_shared(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - emu::shared);
}
namespace emu {
inline char* shared_at(uint64_t address) {
  return reinterpret_cast<char*>(shared) + static_cast<int32_t>(static_cast<uint32_t>(address));
}
}  // namespace emu
template <class A, class B>
inline auto min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
inline auto max(A a, B b) {
  return a > b ? a : b;
}
inline void __nanosleep(unsigned) {}
using std::isinf;
using std::isnan;
