// Products by the transpose of a packed matrix, for gradients: some rows are decoded, each once, and multiplied while
// they lie in the cache.
#include <algorithm>

#include "linear.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local ThreadWorkspace decoded;  // of the caller

constexpr size_t kDecodedFloats = size_t{1} << 18, kMostRows = 128;  // at once
constexpr size_t kTokens = 48, kColumns = 256;                       // of a piece

size_t rows_at_once(size_t k) {
  return std::clamp(kDecodedFloats / (k + 1) / kInterleaved * kInterleaved, kInterleaved, kMostRows);
}

}  // namespace

void multiply_transposed(const Matrix& w, const float* grad, size_t m, float* out, int threads) {
  std::fill_n(out, m * w.k, 0.0f);
  if (m == 0 || w.k == 0) return;
  const size_t rows = rows_at_once(w.k), columns = (w.k + kColumns - 1) / kColumns,
               tokens = (m + kTokens - 1) / kTokens;
  float* values = decoded.get<float>(rows * w.k);
  for (size_t first = 0; first < w.n; first += rows) {
    const size_t count = std::min(rows, w.n - first);
    parallel_for((count + kInterleaved - 1) / kInterleaved, 1, threads, [&](size_t begin, size_t end) {
      const size_t from = begin * kInterleaved, to = std::min(end * kInterleaved, count);
      decode_rows(w, first + from, to - from, values + from * w.k);
    });
    parallel_for(columns * tokens, 1, threads, [&](size_t begin, size_t end) {
      for (size_t piece = begin; piece < end; ++piece) {
        const size_t t = piece / columns * kTokens, i = piece % columns * kColumns;
        current_target().rows.backward(values + i, count, w.k, std::min(kColumns, w.k - i), grad + t * w.n + first, w.n,
                                       std::min(kTokens, m - t), out + t * w.k + i, w.k);
      }
    });
  }
}

}  // namespace fewbit
