// Memory for attention of up to kFewRows queries on int8 tiles.
constexpr size_t kMostCodeBlocks = kMostTiledDim / 32, kCodeSets = kFewRows / 4;

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

  struct Ahead {  // keys and values that will be read, so many bytes of each: as far as they were asked for
    const uint8_t *keys = nullptr, *values = nullptr;
    size_t bytes = 0, at = 0, to = 0;
  } ahead;
};

inline CodeScratch& code_scratch() {
  thread_local const auto own = std::make_unique<CodeScratch>();  // zero where nothing is written
  return *own;
}

// What comes later is brought to the second-level cache, a little at a time, from two places in turns: an eighth of it
// with each of the products, a quarter with each of the steps around them. One of `parts` of it all.
template <int parts>
FEWBIT_INLINE void ask(CodeScratch& own) {
  auto& [keys, values, each, at, to] = own.ahead;
  to += each / parts;
  for (; at < to; at += 64) {
    __builtin_prefetch(keys + at, 0, 2);
    __builtin_prefetch(values + at, 0, 2);
  }
}
