// PTX instructions that the kernels write, one function each: their names with _ for whatever is no letter, operands in
// the order of the assembly's.
#pragma once
#include "functions.h"

namespace ptx {

#ifdef __aarch64__
using Half = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
using Half = _Float16;
#endif

inline float to_float(uint32_t half) {
  Half h;
  const uint16_t b = static_cast<uint16_t>(half);
  std::memcpy(&h, &b, 2);
  return h;
}
inline uint32_t from_float(float f) {
  const Half h = static_cast<Half>(f);
  uint16_t b;
  std::memcpy(&b, &h, 2);
  return b;
}
inline float bf16(uint32_t b) { return __uint_as_float(b << 16); }
template <class F>
inline uint32_t each(uint32_t a, uint32_t b, uint32_t c, F f) {
  return from_float(f(to_float(a), to_float(b), to_float(c))) |
         from_float(f(to_float(a >> 16), to_float(b >> 16), to_float(c >> 16))) << 16;
}

template <class T, class P>
inline void load(T& to, P from, int i = 0) {
  std::memcpy(&to, reinterpret_cast<const char*>(from) + i * sizeof(T), sizeof(T));
}
#define PTX_LOAD4(name)                                      \
  template <class T, class P>                                \
  inline void name(T& a, T& b, T& c, T& d, P p) {            \
    load(a, p), load(b, p, 1), load(c, p, 2), load(d, p, 3); \
  }
#define PTX_LOAD2(name)               \
  template <class T, class P>         \
  inline void name(T& a, T& b, P p) { \
    load(a, p), load(b, p, 1);        \
  }
#define PTX_LOAD1(name)         \
  template <class T, class P>   \
  inline void name(T& a, P p) { \
    load(a, p);                 \
  }
PTX_LOAD4(ld_global_L1__evict_first_v4_u32)
PTX_LOAD4(ld_global_v4_s32)
PTX_LOAD4(ld_global_v4_u32)
PTX_LOAD4(ld_global_v4_f32)
PTX_LOAD4(ld_global_nc_v4_u32)
PTX_LOAD2(ld_global_L1__evict_first_v2_u32)
PTX_LOAD2(ld_global_v2_s32)
PTX_LOAD2(ld_global_v2_u32)
PTX_LOAD2(ld_global_v2_f32)
PTX_LOAD1(ld_global_L1__evict_first_u32)
PTX_LOAD1(ld_global_u32)
PTX_LOAD1(ld_global_s32)
PTX_LOAD1(ld_global_f32)
PTX_LOAD1(ld_global_u16)
PTX_LOAD1(ld_global_cg_f32)
PTX_LOAD1(ld_global_cg_u32)
PTX_LOAD1(ld_acquire_gpu_global_u32)
template <class T>
inline void ld_shared_u32(T& a, uint64_t p) {
  load(a, emu::shared_at(p));
}
template <class T>
inline void ld_shared_v4_u32(T& a, T& b, T& c, T& d, uint64_t p) {
  ld_global_v4_u32(a, b, c, d, emu::shared_at(p));
}
template <class T, class P>
inline void ld_global_u8(T& to, P from) {
  to = *reinterpret_cast<const uint8_t*>(from);
}

template <class F, class H>
inline void cvt_f32_f16(F& f, H h) {
  f = to_float(h);
}
template <class H, class F>
inline void cvt_rn_f16_f32(H& h, F f) {
  h = static_cast<H>(from_float(f));
}
template <class R>
inline void cvt_rn_f16x2_f32(R& r, float high, float low) {
  r = from_float(high) << 16 | from_float(low);
}
template <class R>
inline void cvt_rn_f16x2_f32(R& r, float f) {
  cvt_rn_f16x2_f32(r, f, f);
}
inline float finite(float f) { return f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f; }
template <class R>
inline void cvt_rn_satfinite_f16x2_f32(R& r, float high, float low) {
  r = from_float(finite(high)) << 16 | from_float(finite(low));
}
inline uint32_t to_bf16(float f) {
  uint32_t u = __float_as_uint(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
template <class R>
inline void cvt_rn_bf16x2_f32(R& r, float high, float low) {
  r = to_bf16(high) << 16 | to_bf16(low);
}
template <class R>
inline void cvt_rn_bf16_f32(R& r, float f) {
  r = static_cast<R>(to_bf16(f));
}
inline void sub_f16x2(uint32_t& r, uint32_t a, uint32_t b) {
  r = each(a, b, 0, [](float x, float y, float) { return x - y; });
}
inline void add_f16x2(uint32_t& r, uint32_t a, uint32_t b) {
  r = each(a, b, 0, [](float x, float y, float) { return x + y; });
}
inline void mul_f16x2(uint32_t& r, uint32_t a, uint32_t b) {
  r = each(a, b, 0, [](float x, float y, float) { return x * y; });
}
inline void fma_rn_f16x2(uint32_t& r, uint32_t a, uint32_t b, uint32_t c) {
  r = each(a, b, c, [](float x, float y, float z) { return static_cast<float>(static_cast<double>(x) * y + z); });
}
inline void ex2_approx_ftz_f32(float& r, float a) { r = std::exp2(a); }
inline void ex2_approx_f32(float& r, float a) { r = std::exp2(a); }
inline void lg2_approx_f32(float& r, float a) { r = std::log2(a); }
inline void max_NaN_f32(float& r, float a, float b) { r = a > b || a != a ? a : b; }
inline void rcp_approx_ftz_f32(float& r, float a) { r = 1.0f / a; }
inline void tanh_approx_f32(float& r, float a) { r = std::tanh(a); }

struct Fragments {
  uint32_t a[4], b[2];
};
template <class Decode>
inline void multiply(float& c0, float& c1, float& c2, float& c3, const Fragments& own, Decode decode) {
  emu::exchange(~0u, own);
  const int row = emu::lane() / 4, column = emu::lane() % 4 * 2;
  float* out[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i) {
    const int r = row + i / 2 * 8, c = column + i % 2;
    double sum = *out[i];
    for (int k = 0; k < 16; ++k) {
      const Fragments fa = emu::of<Fragments>(r % 8 * 4 + k % 8 / 2), fb = emu::of<Fragments>(c * 4 + k % 8 / 2);
      const uint32_t a = fa.a[r / 8 + k / 8 * 2] >> 16 * (k % 2), b = fb.b[k / 8] >> 16 * (k % 2);
      sum += static_cast<double>(decode(a & 0xFFFF)) * decode(b & 0xFFFF);
    }
    *out[i] = static_cast<float>(sum);
  }
}
#define PTX_MMA(name, decode)                                                                                      \
  inline void name(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
                   uint32_t b0, uint32_t b1) {                                                                     \
    multiply(c0, c1, c2, c3, Fragments{{a0, a1, a2, a3}, {b0, b1}}, decode);                                       \
  }                                                                                                                \
  inline void name(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
                   uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {                             \
    multiply(c0, c1, c2, c3, Fragments{{a0, a1, a2, a3}, {b0, b1}}, decode);                                       \
    d0 = c0, d1 = c1, d2 = c2, d3 = c3;                                                                            \
  }
PTX_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, to_float)
PTX_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, bf16)

// Rows of eight 16-bit values at the addresses of lanes 8 i to 8 i + 7 make matrix i.
inline void matrices(uint32_t** out, int count, uint64_t address, bool turned) {
  emu::exchange(~0u, address);
  const int lane = emu::lane();
  for (int i = 0; i < count; ++i) {
    uint16_t pair[2];
    for (int j = 0; j < 2; ++j) {
      const int row = turned ? lane % 4 * 2 + j : lane / 4, column = turned ? lane / 4 : lane % 4 * 2 + j;
      std::memcpy(&pair[j], emu::shared_at(emu::of<uint64_t>(8 * i + row)) + 2 * column, 2);
    }
    *out[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}
#define PTX_LDMATRIX(suffix, turned)                                                                                 \
  inline void ldmatrix_sync_aligned_m8n8_x4##suffix##_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, \
                                                                 uint64_t p) {                                       \
    uint32_t* out[4] = {&a, &b, &c, &d};                                                                             \
    matrices(out, 4, p, turned);                                                                                     \
  }                                                                                                                  \
  inline void ldmatrix_sync_aligned_m8n8_x2##suffix##_shared_b16(uint32_t& a, uint32_t& b, uint64_t p) {             \
    uint32_t* out[2] = {&a, &b};                                                                                     \
    matrices(out, 2, p, turned);                                                                                     \
  }
PTX_LDMATRIX(, false)
PTX_LDMATRIX(_trans, true)

inline void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t& r, uint32_t v) {
  emu::exchange(~0u, v);
  const int row = emu::lane() / 4, column = emu::lane() % 4 * 2;
  auto at = [](int r, int c) { return emu::of<uint32_t>(r * 4 + c / 2) >> 16 * (c % 2) & 0xFFFF; };
  r = at(column, row) | at(column + 1, row) << 16;
}

inline void note_write(uint64_t address);
inline void cp_async_cg_shared_global(uint64_t to, const void* from) {
  note_write(to);
  std::memcpy(emu::shared_at(to), from, 16);
}
template <class N>
inline void cp_async_cg_shared_global(uint64_t to, const void* from, N bytes) {
  std::memset(emu::shared_at(to), 0, 16);
  std::memcpy(emu::shared_at(to), from, static_cast<size_t>(bytes));
}
inline void cp_async_commit_group() {}
template <class N>
inline void cp_async_wait_group(N) {}
inline void cp_async_wait_group() {}
inline void cp_async_wait_all() {}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void prefetch_global_L2(const void*) {}

}  // namespace ptx

#include "wgmma.h"
