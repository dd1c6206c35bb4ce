// What products on matrix tiles have in common: packed activations, the configuration of tiles, bf16 products and their
// results.

// Packed activations: for each k-block, for each 16 columns, eight right tiles. Columns and values that are not there
// are zero.
inline size_t column_tiles(size_t m) { return (m + 15) / 16; }

// 64 values of up to 16 columns to two tiles.
inline void pack_tiles(const float* x, size_t columns, size_t stride, size_t values, uint16_t* out) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  __m512i r[2][16];
  for (size_t i = 0; i < 16; ++i) {
    if (i >= columns) {
      r[0][i] = r[1][i] = _mm512_setzero_si512();
      continue;
    }
    __m512 v[4];
    for (size_t l = 0; l < 4; ++l) {
      const size_t left = values > 16 * l ? values - 16 * l : 0;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1);
      v[l] = _mm512_maskz_loadu_ps(mask, x + i * stride + 16 * l);
    }
    r[0][i] = reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(v[2], even, v[3]), _mm512_permutex2var_ps(v[0], even, v[1])));
    r[1][i] = reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(v[2], odd, v[3]), _mm512_permutex2var_ps(v[0], odd, v[1])));
  }
  for (int h = 0; h < 2; ++h) {
    transpose16(r[h]);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + h * kTileElements + 32 * i, r[h][i]);
  }
}

// Column tiles `first` to `last` of the activations.
inline void pack_columns(const float* x, size_t m, size_t k, size_t first, size_t last, uint16_t* out) {
  const size_t tiles = column_tiles(m);
  for (size_t t = first; t < last; ++t) {
    const size_t columns = m - 16 * t < 16 ? m - 16 * t : 16;
    for (size_t at = 0; at < (k + kBlockK - 1) / kBlockK * kBlockK; at += 64) {
      uint16_t* to = out + ((at / kBlockK * tiles + t) * kSteps + at % kBlockK / 32) * kTileElements;
      if (at < k)
        pack_tiles(x + 16 * t * k + at, columns, k, k - at, to);
      else
        std::memset(to, 0, 2 * kTileElements * sizeof(uint16_t));
    }
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 0, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  static TileConfig whole() {
    TileConfig out;
    out.palette = 1;
    for (int i = 0; i < 8; ++i) out.set(i, 16, 64);
    return out;
  }
  void set(int tile, uint8_t its_rows, uint16_t row_bytes) {
    rows[tile] = its_rows;
    bytes[tile] = row_bytes;
  }
};
static_assert(sizeof(TileConfig) == 64);

// While one lives, tiles can be used: 0 and 1 for results, 4 and 5 on the left, 6 on the right. Then the thread has
// back the configuration that it had: another library may count on it.
//
// At times, and most likely while the other thread of the core uses tiles too, a thread with all eight in use waits for
// every load, as if there were hardly a register to spare behind them. A tile that was zeroed takes none: so kernels
// use few of them, and zero what they have read. See docs/log.md.
class TileUse {
 public:
  TileUse() : TileUse(TileConfig::whole()) {}
  explicit TileUse(const TileConfig& config) {
    _tile_storeconfig(&before_);
    __asm__ volatile("" ::: "memory");
    load(config);
  }
  ~TileUse() {
    if (before_.palette != 0)
      load(before_);
    else
      _tile_release();
  }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;

 private:
  static void load(const TileConfig& config) {
    __asm__ volatile("" ::"r"(&config) : "memory");  // gcc 12 believes that only 8 bytes are read
    _tile_loadconfig(&config);
  }
  TileConfig before_;
};

// The unit that multiplies tiles falls asleep after about 300 ns without work, and takes as long to wake up. A product
// that nobody reads keeps it awake: the sum in tile 0 begins anew with every use.
FEWBIT_INLINE void keep_tiles_awake() { _tile_dpbssd(0, 4, 6); }

// Tiles along a k-block of a row of k values that hold anything.
inline size_t steps_of(size_t k, size_t k_block) {
  const size_t left = k - k_block * kBlockK;
  return left >= kBlockK ? kSteps : (left + 63) / 64 * 2;
}
inline const uint16_t* tile_of(const Columns& x, size_t k_block, size_t t) {
  return x.x + (k_block * x.all + t) * kSteps * kTileElements;
}

// Results of a strip and a column tile: two tiles [row][column].
constexpr size_t kTileResults = 2 * 256;

FEWBIT_INLINE void zero_results() {
  _tile_zero(0);
  _tile_zero(1);
}
FEWBIT_INLINE void load_results(const float* c) {
  _tile_loadd(0, c, 64);
  _tile_loadd(1, c + 256, 64);
}
FEWBIT_INLINE void store_results(float* c) {
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
}
FEWBIT_INLINE void zero_operands() {
  _tile_zero(4);
  _tile_zero(6);
}
// 32 values of a strip and a column tile. Columns must not push the strip out of the first-level cache.
FEWBIT_INLINE void multiply(const uint16_t* a, const uint16_t* b) {
  _tile_stream_loadd(6, b, 64);
  _tile_loadd(4, a, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_zero(4);
  _tile_loadd(4, a + kTileElements, 64);
  _tile_dpbf16ps(1, 4, 6);
  zero_operands();
}

// The first 32 values: sums begin anew. Where those before are still to be stored, each goes just before its tile is
// needed again, so that the unit does not wait for both.
FEWBIT_INLINE void multiply_anew(const uint16_t* a, const uint16_t* b, float* before) {
  _tile_stream_loadd(6, b, 64);
  _tile_loadd(4, a, 64);
  if (before) _tile_stored(0, before, 64);
  _tile_zero(0);
  _tile_dpbf16ps(0, 4, 6);
  _tile_zero(4);
  _tile_loadd(4, a + kTileElements, 64);
  if (before) _tile_stored(1, before + 256, 64);
  _tile_zero(1);
  _tile_dpbf16ps(1, 4, 6);
  zero_operands();
}

// The results of `rows` rows, strip by strip, to y[column][row]. Columns lie far apart in y: all rows of 16 columns are
// written before the next 16.
inline void write_results(const float* results, size_t rows, size_t columns, float* y, size_t stride) {
  const size_t tiles = column_tiles(columns), strip = tiles * kTileResults;
  for (size_t t = 0; t < tiles; ++t) {
    const size_t some = columns - 16 * t < 16 ? columns - 16 * t : 16;
    for (size_t r = 0; r < rows; r += 16) {
      const float* c = results + r / kStrip * strip + t * kTileResults + r / 16 % 2 * 256;
      __m512i v[16];
      for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(c + 16 * i);
      transpose16(v);
      const auto mask = static_cast<__mmask16>(rows - r >= 16 ? 0xFFFF : (1u << (rows - r)) - 1);
      for (size_t i = 0; i < some; ++i) {
        _mm512_mask_storeu_ps(y + (16 * t + i) * stride + r, mask, _mm512_castsi512_ps(v[i]));
      }
    }
  }
}
