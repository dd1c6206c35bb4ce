// Products on bf16 tiles: up to a few dozen columns strip by strip, more of them panel by panel.

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

// Up to a few dozen columns: while the tiles of one k-block are multiplied, the next k-block is decoded. The two use
// different parts of the core.
struct alignas(64) StripScratch {
  uint16_t strips[2][kStripElements];
};

// The rows of a strip, a k-block at a time. `rows` is where the first of them begins.
template <class F, bool interleaved = reads_interleaved<F>()>
struct StripRows {
  FEWBIT_INLINE void to_tiles(const uint8_t* rows, size_t r, size_t k_block, size_t k_blocks, size_t k,
                              const Layout& at, uint16_t* out) {
    const uint8_t* row = rows + r * at.row_bytes;
    const uint8_t* next =
        k_block + 1 < k_blocks ? row + (k_block + 1) * tile_k_block_bytes<F>() : row + kStrip * at.row_bytes;
    for (int c = 0; c < tile_k_block_bytes<F>(); c += 64) __builtin_prefetch(next + c);
    k_block_to_tiles<F>(row, k_block, k, at, out);
  }
};
// Interleaved ones are laid apart, 16 of them together.
template <class F>
struct StripRows<F, true> {
  StripRows<F, false> plain;
  RowsApart<F> apart;

  FEWBIT_INLINE void to_tiles(const uint8_t* rows, size_t r, size_t k_block, size_t k_blocks, size_t k,
                              const Layout& at, uint16_t* out) {
    if (!at.interleaved) return plain.to_tiles(rows, r, k_block, k_blocks, k, at, out);
    constexpr size_t size = RowsApart<F>::panel_bytes;
    const uint8_t* set = rows + r / 16 * 16 * at.row_bytes;
    const uint8_t* panel = set + k_block * size;
    const uint8_t* next = panel + size + (k_block + 1 < k_blocks ? 0 : kStrip * at.row_bytes - k_blocks * size);
    for (size_t c = 0; c < size / 16; c += 64) __builtin_prefetch(next + r % 16 * size / 16 + c);
    if (r % 16 == 0) apart.fill(set, k_block, at);
    apart.to_tiles(r % 16, out);
  }
};

template <class F>
void fused_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                size_t y_stride, void* scratch) {
  const TileUse in_use;
  auto* own = static_cast<StripScratch*>(scratch);
  float* results = reinterpret_cast<float*>(own + 1);
  const size_t k_blocks = (k + kBlockK - 1) / kBlockK, steps = x.count * kSteps;
  const auto step = [&](size_t k_block, size_t i) FEWBIT_LAMBDA_INLINE {
    const size_t t = i / kSteps, q = i % kSteps;
    if (q == 0) {
      if (k_block == 0)
        zero_results();
      else if (x.count > 1)
        load_results(results + t * kTileResults);
    }
    if (q < steps_of(k, k_block)) {
      multiply(own->strips[k_block % 2] + q * 2 * kTileElements, tile_of(x, k_block, t) + q * kTileElements);
    }
    if (q == kSteps - 1 && (x.count > 1 || k_block + 1 == k_blocks)) store_results(results + t * kTileResults);
  };
  StripRows<F> decoder;
  for (size_t first = 0; first < rows; first += kStrip) {
    const size_t count = rows - first < kStrip ? rows - first : kStrip;
    for (size_t k_block = 0; k_block <= k_blocks; ++k_block) {
      size_t done = 0;
      for (size_t r = 0; r < kStrip; ++r) {
        if (k_block < k_blocks && r < count) {
          decoder.to_tiles(w + first * at.row_bytes, r, k_block, k_blocks, k, at,
                           own->strips[k_block % 2] + r * kTileValues);
        }
        if (k_block == 0) continue;
        for (const size_t due = (r + 1) * steps / kStrip; done < due; ++done) step(k_block - 1, done);
      }
    }
    write_results(results, count, columns, y + first, y_stride);
  }
}

// Many columns. A strip of a few k-blocks is decoded and meets all column tiles; then the next strip; then the next
// k-blocks. The strip stays in the first-level cache; columns and sums come from the second. Results leave the tiles
// through a small buffer and are added to the sums by vectors, while the next column tile is multiplied: to load and
// store tiles of sums would cost a third of the products.
struct alignas(64) PanelScratch {
  uint16_t strip[kPanelKBlocks * kStripElements];
  float fresh[kTileResults];
};

// Where the fresh results of a strip and a column tile go: to their sums, and in the end to y[column][row].
struct Drain {
  float* sums = nullptr;
  float* y = nullptr;
  size_t stride = 0, rows = 0, columns = 0;
  bool first = true, last = false;

  // The part `q` of kSteps.
  FEWBIT_INLINE void part(const float* fresh, size_t q) const {
    constexpr size_t values = kTileResults / kSteps;
    if (!sums) return;
    if (last) {
      if (q % 4 == 3) write_rows(fresh, q / 4 * 16);
    } else if (first) {
      std::memcpy(sums + values * q, fresh + values * q, values * sizeof(float));
    } else {
      for (size_t i = values * q; i < values * (q + 1); i += 16) _mm512_store_ps(sums + i, sum(fresh, i));
    }
  }
  FEWBIT_INLINE __m512 sum(const float* fresh, size_t i) const {
    const __m512 v = _mm512_load_ps(fresh + i);
    return first ? v : _mm512_add_ps(v, _mm512_load_ps(sums + i));
  }
  FEWBIT_INLINE void write_rows(const float* fresh, size_t row) const {
    if (row >= rows) return;
    __m512i v[16];
    for (size_t i = 0; i < 16; ++i) v[i] = _mm512_castps_si512(sum(fresh, 16 * row + 16 * i));
    transpose16(v);
    const auto mask = static_cast<__mmask16>(rows - row >= 16 ? 0xFFFF : (1u << (rows - row)) - 1);
    for (size_t i = 0; i < 16 && i < columns; ++i) {
      _mm512_mask_storeu_ps(y + i * stride + row, mask, _mm512_castsi512_ps(v[i]));
    }
  }
  // Prefetches the part `q` of the lines of y: they lie far apart.
  FEWBIT_INLINE void prefetch(size_t q) const {
    for (size_t c = 2 * q; last && c < 2 * (q + 1) && c < columns; ++c) {
      __builtin_prefetch(y + c * stride, 1);
      if (rows > 16) __builtin_prefetch(y + c * stride + 16, 1);
    }
  }
};

template <class F>
FEWBIT_INLINE void decode_interleaved_strip(const uint8_t* w, size_t rows, const Layout& at, size_t from, size_t deep,
                                            uint16_t* strip) {
  constexpr size_t size = RowsApart<F>::panel_bytes;
  RowsApart<F> apart;
  for (size_t r = 0; r < rows; r += 16) {
    for (size_t i = 0; i < deep; ++i) {
      const uint8_t* set = w + r * at.row_bytes;
      for (size_t c = 0; c < size; c += 64) __builtin_prefetch(set + 16 * at.row_bytes + (from + i) * size + c);
      apart.fill(set, from + i, at);
      for (size_t own = 0; own < 16; ++own) {
        if (own % 8 == 0) keep_tiles_awake();
        apart.to_tiles(own, strip + i * kStripElements + (r + own) * kTileValues);
      }
    }
  }
}

template <class F>
FEWBIT_INLINE void decode_strip(const uint8_t* w, size_t rows, size_t k, const Layout& at, size_t from, size_t deep,
                                uint16_t* strip) {
  if constexpr (reads_interleaved<F>()) {
    if (at.interleaved) return decode_interleaved_strip<F>(w, rows, at, from, deep, strip);
  }
  for (size_t r = 0; r < rows; ++r) {
    const uint8_t* row = w + r * at.row_bytes;
    if (r % 8 == 0) keep_tiles_awake();
    for (size_t i = 0; i < deep; ++i) {
      const uint8_t* to_prefetch = row + (from + i) * tile_k_block_bytes<F>() + 8 * at.row_bytes;
      for (int c = 0; c < tile_k_block_bytes<F>(); c += 64) __builtin_prefetch(to_prefetch + c);
      k_block_to_tiles<F>(row, from + i, k, at, strip + i * kStripElements + r * kTileValues);
    }
  }
}

// Prefetches columns of the next k-blocks to the second-level cache, a few lines at each step.
struct NextColumns {
  const char* at;
  size_t lines;
  FEWBIT_INLINE void prefetch() {
    for (size_t i = 0; i < lines; ++i, at += 64) _mm_prefetch(at, _MM_HINT_T1);
  }
};

template <class F>
void panel(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
           size_t y_stride, PanelScratch& own, float* sums) {
  const size_t k_blocks = (k + kBlockK - 1) / kBlockK, strips = (rows + kStrip - 1) / kStrip;
  const size_t most = k_blocks <= kPanelKBlocks ? k_blocks
                      : x.count <= 16           ? 2
                                                : 1;  // what the second-level cache holds
  Drain drain;
  for (size_t from = 0, deep; from < k_blocks; from += deep) {
    deep = std::min(most, k_blocks - from);
    NextColumns next{reinterpret_cast<const char*>(tile_of(x, from + deep, 0)),
                     from + deep < k_blocks ? std::min<size_t>(16 / strips, 2) : 0};
    for (size_t strip = 0; strip < strips; ++strip) {
      const size_t first = strip * kStrip, count = rows - first < kStrip ? rows - first : kStrip;
      decode_strip<F>(w + first * at.row_bytes, count, k, at, from, deep, own.strip);
      for (size_t t = 0; t < x.count; ++t) {
        const Drain own_drain{sums + (strip * x.count + t) * kTileResults,
                              y + 16 * t * y_stride + first,
                              y_stride,
                              count,
                              columns - 16 * t,
                              from == 0,
                              from + deep == k_blocks};
        for (size_t i = 0; i < deep; ++i) {
          const uint16_t *a = own.strip + i * kStripElements, *b = tile_of(x, from + i, t);
          const size_t steps = steps_of(k, from + i);
          for (size_t q = 0; q < kSteps; ++q) {
            if (i == 0 && q == 0)
              multiply_anew(a, b, t > 0 ? own.fresh : nullptr);
            else if (q < steps)
              multiply(a + q * 2 * kTileElements, b + q * kTileElements);
            next.prefetch();
            if (i > 0) continue;
            own_drain.prefetch(q);
            if (q > 0) drain.part(own.fresh, q - 1);
            if (q + 1 == kSteps) drain.part(own.fresh, q);
          }
        }
        drain = own_drain;
      }
      store_results(own.fresh);  // the tiles are used while the next strip is decoded
    }
  }
  for (size_t q = 0; q < kSteps; ++q) drain.part(own.fresh, q);
}

template <class F>
void packed_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x, size_t columns, float* y,
                 size_t y_stride, void* scratch) {
  const TileUse in_use;
  auto* own = static_cast<PanelScratch*>(scratch);
  float* sums = reinterpret_cast<float*>(own + 1);
  for (size_t first = 0; first < rows; first += kPanelRows) {
    const size_t count = rows - first < kPanelRows ? rows - first : kPanelRows;
    panel<F>(w + first * at.row_bytes, count, k, at, x, columns, y + first, y_stride, *own, sums);
  }
}

inline size_t tile_scratch_bytes(size_t columns) {  // for any of them
  const size_t sums = kPanelRows / kStrip * column_tiles(columns) * kTileResults;
  return std::max<size_t>(sizeof(PanelScratch), kSkinnyScratch) + sums * sizeof(float);
}
