// Products on bf16 tiles of up to a few dozen columns: while the tiles of one k-block are multiplied, the next k-block
// is decoded. The two use different parts of the core.
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
