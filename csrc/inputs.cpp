// Activations, packed once for all products that read them.
#include "inputs.h"

#include <algorithm>
#include <bit>

#include "threads.h"

namespace fewbit {
namespace {

float value_of(const Activation& a, size_t i) { return static_cast<float>(a.q[i]) * a.d32[i / 32]; }

// What 8 bits lose of a k-block.
void subtract(const float* x, const Activation& a, float* __restrict lost) {
  for (size_t b = 0; b < kBlockK / 32; ++b) {
    for (size_t i = 32 * b; i < 32 * (b + 1); ++i) lost[i] = x[i] - static_cast<float>(a.q[i]) * a.d32[b];
  }
}

}  // namespace

size_t activation_count(size_t m, size_t k) { return m * k_blocks_of(k); }
size_t tile_elements(size_t m, size_t k) { return k_blocks_of(k) * ((m + 15) / 16) * kTileBytes / sizeof(uint16_t); }

// K-block by k-block, so that what is lost stays in the first-level cache.
void quantize_row(const float* x, size_t k, bool twice, Activation* out) {
  const ProductTable& target = current_target().products;
  if (!twice) return target.quantize_row(x, k, out);
  const size_t k_blocks = k_blocks_of(k), rest = k % kBlockK;
  alignas(64) float lost[kBlockK], padded[kBlockK] = {};
  for (size_t s = 0; s < k_blocks; ++s) {
    const float* from = x + s * kBlockK;
    if (s == k / kBlockK) from = std::copy_n(from, rest, padded) - rest;
    target.quantize_row(from, kBlockK, out + s);
    subtract(from, out[s], lost);
    target.quantize_row(lost, kBlockK, out + k_blocks + s);
  }
}

void quantize_activations(const float* x, size_t m, size_t k, bool twice, Activation* out, int threads) {
  const size_t each = k_blocks_of(k) * (twice ? 2 : 1);
  parallel_for(m, 8192 / (k + 1) + 1, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) quantize_row(x + r * k, k, twice, out + r * each);
  });
}

void decode_activations(const Activation* x, size_t m, size_t k, bool twice, float* out) {
  const size_t k_blocks = k_blocks_of(k), each = k_blocks * (twice ? 2 : 1);
  for (size_t r = 0; r < m; ++r) {
    for (size_t i = 0; i < k; ++i) {
      const Activation* a = x + r * each + i / kBlockK;
      out[r * k + i] = value_of(*a, i % kBlockK) + (twice ? value_of(a[k_blocks], i % kBlockK) : 0);
    }
  }
}

void pack_tiles(const float* x, size_t m, size_t k, uint16_t* out, int threads) {
  const Tiles& tiles = *current_target().products.tiles;
  parallel_for((m + 15) / 16, 1, threads,
               [&](size_t begin, size_t end) { tiles.pack_columns(x, m, k, begin, end, out); });
}

// Tiles of 16 columns and 32 values: of every 64 values first the even ones, then the odd ones, two and two.
void unpack_tiles(const uint16_t* x, size_t m, size_t k, float* out) {
  const size_t tiles = (m + 15) / 16;
  for (size_t c = 0; c < m; ++c) {
    const uint16_t* column = x + c / 16 * 4096 + c % 16 * 2;
    for (size_t i = 0; i < k; ++i) {
      const size_t tile = i % kBlockK / 64 * 2 + i % 2, pair = i % 64 / 4, which = i % 64 / 2 % 2;
      const uint32_t bits = column[i / kBlockK * tiles * 4096 + tile * 512 + pair * 32 + which];
      out[c * k + i] = std::bit_cast<float>(bits << 16);
    }
  }
}

}  // namespace fewbit
