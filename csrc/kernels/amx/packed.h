// Products on bf16 tiles of many columns. A strip of a few k-blocks is decoded and meets all column tiles; then the
// next strip; then the next k-blocks. The strip stays in the first-level cache; columns and sums come from the second.
// Results leave the tiles through a small buffer and are added to the sums by vectors, while the next column tile is
// multiplied: to load and store tiles of sums would cost a third of the products.
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
FEWBIT_ONCE void decode_strip(const uint8_t* w, size_t rows, size_t k, const Layout& at, size_t from, size_t deep,
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

using DecodeStrip = void (*)(const uint8_t* w, size_t rows, size_t k, const Layout& at, size_t from, size_t deep,
                             uint16_t* strip);

// The same for all formats but for what decodes them.
inline FEWBIT_ONCE void panel(DecodeStrip decode, const uint8_t* w, size_t rows, size_t k, const Layout& at, Columns x,
                              size_t columns, float* y, size_t y_stride, PanelScratch& own, float* sums) {
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
      decode(w + first * at.row_bytes, count, k, at, from, deep, own.strip);
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
    panel(decode_strip<F>, w + first * at.row_bytes, count, k, at, x, columns, y + first, y_stride, *own, sums);
  }
}

inline size_t tile_scratch_bytes(size_t columns) {  // for any of them
  const size_t sums = kPanelRows / kStrip * column_tiles(columns) * kTileResults;
  return std::max<size_t>(sizeof(PanelScratch), kSkinnyScratch) + sums * sizeof(float);
}
