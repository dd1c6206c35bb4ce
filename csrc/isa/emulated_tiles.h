// Matrix tiles, bf16 and permutations of bytes as plain loops, in the place of the instructions: so that the kernels of
// targets/amx.cpp can be tested on a machine without them. Built with FEWBIT_EMULATE=ON, see `make emulate`.
#pragma once

namespace fewbit::emulated {

struct State {
  alignas(64) uint8_t config[64];
  alignas(64) uint8_t tiles[8][16][64];

  // As the configuration says; what was not configured must not be used.
  size_t rows(int tile) const {
    if (config[0] != 1 || config[48 + tile] == 0) __builtin_trap();
    return config[48 + tile];
  }
  size_t bytes(int tile) const { return load<uint16_t>(config + 16 + 2 * tile); }
};
inline State& state() {
  thread_local State own{};
  return own;
}

inline void load_config(const void* p) {
  std::memcpy(state().config, p, 64);
  std::memset(state().tiles, 0, sizeof state().tiles);
}
inline void store_config(void* p) { std::memcpy(p, state().config, 64); }
inline void release() { std::memset(&state(), 0, sizeof(State)); }
inline void zero(int tile) { std::memset(state().tiles[tile], 0, 1024 * (state().rows(tile) > 0)); }
inline void load_tile(int tile, const void* p, size_t stride) {
  State& s = state();
  std::memset(s.tiles[tile], 0, 1024);
  for (size_t r = 0; r < s.rows(tile); ++r) {
    std::memcpy(s.tiles[tile][r], static_cast<const uint8_t*>(p) + r * stride, s.bytes(tile));
  }
}
inline void store_tile(int tile, void* p, size_t stride) {
  const State& s = state();
  for (size_t r = 0; r < s.rows(tile); ++r) {
    std::memcpy(static_cast<uint8_t*>(p) + r * stride, s.tiles[tile][r], s.bytes(tile));
  }
}

// c += a * b, four bytes or two bf16 at a time: Left and Right are their types.
template <class Sum, class Left, class Right>
__attribute__((noinline)) void multiply(int c, int a, int b) {
  State& s = state();
  constexpr size_t each = 4 / sizeof(Left);
  const size_t columns = s.bytes(c) / 4, depth = s.bytes(a) / 4;
  if (s.rows(a) != s.rows(c) || s.rows(b) < depth || s.bytes(b) != s.bytes(c)) __builtin_trap();
  const auto value = [](auto x) {
    if constexpr (sizeof x == 2)
      return bits_f32(static_cast<uint32_t>(x) << 16);
    else
      return static_cast<int>(x);
  };
  for (size_t m = 0; m < s.rows(c); ++m) {
    Sum row[16];
    std::memcpy(row, s.tiles[c][m], sizeof row);
    for (size_t k = 0; k < depth; ++k) {
      Left left[each];
      Right right[16 * each];
      std::memcpy(left, s.tiles[a][m] + 4 * k, sizeof left);
      std::memcpy(right, s.tiles[b][k], sizeof right);
      for (size_t n = 0; n < columns; ++n) {
        for (size_t i = 0; i < each; ++i) row[n] += value(left[i]) * value(right[n * each + i]);
      }
    }
    std::memcpy(s.tiles[c][m], row, sizeof row);
  }
}

struct Bytes {
  alignas(64) uint8_t v[64];
  explicit Bytes(__m512i x) { _mm512_store_si512(v, x); }
  __m512i vector() const { return _mm512_load_si512(v); }
};
inline __m512i permute(__mmask64 mask, __m512i otherwise, __m512i index, __m512i low, __m512i high, int count) {
  const Bytes i(index), a(low), b(high);
  Bytes out(otherwise);
  for (int l = 0; l < 64; ++l) {
    const int at = i.v[l] & (count - 1);
    if (mask >> l & 1) out.v[l] = at < 64 ? a.v[at] : b.v[at - 64];
  }
  return out.vector();
}
inline __m512i multishift(__m512i shifts, __m512i words) {
  const Bytes by(shifts);
  Bytes out(words);
  for (int q = 0; q < 64; q += 8) {
    const auto word = load<uint64_t>(out.v + q);
    for (int l = 0; l < 8; ++l) {
      const int down = by.v[q + l] & 63;
      out.v[q + l] = static_cast<uint8_t>(word >> down | (down ? word << (64 - down) : 0));
    }
  }
  return out.vector();
}
inline __m512bh to_bf16(__m512 high, __m512 low) {
  alignas(64) float from[32];
  alignas(64) uint16_t to[32];
  _mm512_store_ps(from, low);
  _mm512_store_ps(from + 16, high);
  for (int i = 0; i < 32; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, 4);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
      bits |= 0x400000;
    else if (magnitude < 0x800000)
      bits &= 0x80000000;
    else
      bits += 0x7fff + (bits >> 16 & 1);
    to[i] = static_cast<uint16_t>(bits >> 16);
  }
  __m512bh out;
  std::memcpy(&out, to, sizeof out);
  return out;
}

}  // namespace fewbit::emulated

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig fewbit::emulated::load_config
#define _tile_storeconfig fewbit::emulated::store_config
#define _tile_release fewbit::emulated::release
#define _tile_loadd fewbit::emulated::load_tile
#define _tile_stream_loadd fewbit::emulated::load_tile
#define _tile_stored fewbit::emulated::store_tile
#define _tile_zero fewbit::emulated::zero
#define _tile_dpbssd (fewbit::emulated::multiply<int32_t, int8_t, int8_t>)
#define _tile_dpbsud (fewbit::emulated::multiply<int32_t, int8_t, uint8_t>)
#define _tile_dpbusd (fewbit::emulated::multiply<int32_t, uint8_t, int8_t>)
#define _tile_dpbf16ps (fewbit::emulated::multiply<float, uint16_t, uint16_t>)
#define _mm512_cvtne2ps_pbh fewbit::emulated::to_bf16
#define _mm512_permutexvar_epi8(i, a) fewbit::emulated::permute(~0ull, i, i, a, a, 64)
#define _mm512_mask_permutexvar_epi8(or_else, mask, i, a) fewbit::emulated::permute(mask, or_else, i, a, a, 64)
#define _mm512_permutex2var_epi8(a, i, b) fewbit::emulated::permute(~0ull, i, i, a, b, 128)
#define _mm512_multishift_epi64_epi8 fewbit::emulated::multishift
