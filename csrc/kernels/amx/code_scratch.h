// Memory for attention of up to kSkinnyQueries queries on int8 tiles.
constexpr size_t kMostCodeBlocks = kMostTiledDim / 32, kCodeSets = kSkinnyRows / 4;

struct CodeQueries {  // as tiles, and what one unit of each row stands for
  alignas(64) int8_t tiles[kCodeSets][kMostCodeBlocks / 2][1024];
  alignas(64) float units[kCodeSets][4];
};

struct CodeScratch {
  const int8_t *keys_at, *values_at;                      // those below, or where they lie in a page
  alignas(64) int8_t keys[kMostCodeBlocks / 2][2][1024];  // tiles
  alignas(64) int8_t values[kMostCodeBlocks / 2][2][1024];
  alignas(64) int8_t weights[kCodeSets][kMostCodeBlocks / 2][1024];  // 0 where never anything is written
  alignas(64) float key_scales[kMostCodeBlocks][kKvTokens];
  alignas(64) float value_scales[kMostCodeBlocks][kKvTokens];
  alignas(64) float units[kCodeSets][kMostCodeBlocks * 4];  // of weights, [block][row]
  alignas(64) int32_t key_results[kCodeSets][kMostCodeBlocks][16][16];
  alignas(64) int32_t value_results[kCodeSets][kMostCodeBlocks][16][16];

  struct ToPrefetch {  // keys and values that will be read, so many bytes of each: as far as they were prefetched
    const uint8_t *keys = nullptr, *values = nullptr;
    size_t bytes = 0, at = 0, to = 0;
  } to_prefetch;
};

inline CodeScratch& code_scratch() {
  thread_local const auto own = std::make_unique<CodeScratch>();  // zero where nothing is written
  return *own;
}

// What comes later is prefetched to the second-level cache, a little at a time, from two streams alternately: an eighth
// of it with each of the products, a quarter with each of the steps around them. One of `parts` of it all.
template <int parts>
FEWBIT_INLINE void prefetch(CodeScratch& own) {
  auto& [keys, values, each, at, to] = own.to_prefetch;
  to += each / parts;
  for (; at < to; at += 64) {
    __builtin_prefetch(keys + at, 0, 2);
    __builtin_prefetch(values + at, 0, 2);
  }
}
