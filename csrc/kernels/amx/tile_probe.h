// What matrix tiles can do at most: products of random numbers that are in tiles already. Zeros would run faster.
// With more tiles in use they may wait for each other, see TileUse.

struct alignas(64) RandomTiles {
  uint8_t bytes[2][1024];
};
inline void load_random_tiles(bool floats) {
  RandomTiles data;
  uint32_t state = 1;
  for (auto& tile : data.bytes) {
    for (int i = 0; i < 1024; i += 2) {
      state = state * 1664525u + 1013904223u;
      const uint16_t bits =
          static_cast<uint16_t>(floats ? 0x3f00 | (state >> 24) | (state >> 8 & 0x8000) : state >> 16);
      std::memcpy(tile + i, &bits, 2);
    }
  }
  __asm__ volatile("" ::"r"(&data) : "memory");
  _tile_loadd(4, data.bytes[0], 64);
  _tile_loadd(6, data.bytes[1], 64);
  zero_results();
}
inline float first_result() {
  alignas(64) float c[256];
  _tile_stored(0, c, 64);
  return c[0];
}

template <bool floats>
size_t probe_tiles(size_t rounds, float* sink) {
  const TileUse in_use;
  load_random_tiles(floats);
  for (size_t r = 0; r < rounds / 16 * 2; ++r) {
    if constexpr (floats) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 6);
    } else {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 6);
    }
  }
  *sink = first_result();
  return rounds / 16 * 4 * 16 * 16 * (floats ? 32 : 64);
}
