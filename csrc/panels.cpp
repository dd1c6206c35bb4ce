// Rows to panels, and back.
#include "panels.h"

#include <algorithm>
#include <cstring>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local ThreadWorkspace padded, panel_copy;  // of whoever does a piece

// 16 rows interleaved, and back.
void move_set(const Matrix& w, const uint8_t* from, bool back, uint8_t* out) {
  const InterleaveMoves& move = current_target().products.interleave;
  const size_t stride = w.at.row_bytes, bytes = w.kernels->laid_at_once ? w.kernels->laid_at_once : stride;
  for (size_t at = 0; at < stride; at += bytes) {
    if (back)
      move.from(from + kInterleaved * at, bytes, out + at, stride);
    else
      move.to(from + at, stride, bytes, out + kInterleaved * at);
  }
}

}  // namespace

size_t count_interleaved(const Matrix& w) { return w.at.interleaved ? w.n / kInterleaved * kInterleaved : 0; }

Layout panel_layout(const Matrix& w) {
  const size_t k = k_blocks_of(w.k) * kBlockK;
  Layout at = k == w.k ? w.at : w.kernels->layout(k, w.at.group >= w.k ? k : w.at.group);
  at.interleaved = true;
  return at;
}

void make_panel(const Matrix& w, size_t first, size_t count, const Layout& at, uint8_t* out) {
  const uint8_t* rows = w.data + first * w.at.row_bytes;
  if (w.at.interleaved) {
    std::memset(std::copy_n(rows, kInterleaved * w.at.row_bytes, out), 0,
                kInterleaved * (at.row_bytes - w.at.row_bytes));
    return;
  }
  Matrix set = w;
  set.at = at;
  if (count == kInterleaved && at.row_bytes == w.at.row_bytes) return move_set(set, rows, false, out);
  uint8_t* copy = padded.get<uint8_t>(kInterleaved * at.row_bytes);
  std::memset(copy, 0, kInterleaved * at.row_bytes);
  for (size_t r = 0; r < count; ++r, rows += w.at.row_bytes) {
    size_t from = 0, to = r * at.row_bytes;  // field by field
    for (size_t f = 0; f < 2 && w.at.field_at[f] > 0; ++f) {
      std::memcpy(copy + to, rows + from, w.at.field_at[f] - from);
      from = w.at.field_at[f];
      to = r * at.row_bytes + at.field_at[f];
    }
    std::memcpy(copy + to, rows + from, w.at.row_bytes - from);
  }
  move_set(set, copy, false, out);
}

void copy_rows(const Matrix& w, size_t first, size_t count, uint8_t* out) {
  const uint8_t* from = w.data + first * w.at.row_bytes;
  for (size_t at = 0; at < count * w.at.row_bytes; at += kInterleaved * w.at.row_bytes) {
    move_set(w, from + at, true, out + at);
  }
}

void decode_rows(const Matrix& w, size_t first, size_t count, float* out) {
  const size_t stride = w.at.row_bytes, whole = count_interleaved(w);
  uint8_t* copy = panel_copy.get<uint8_t>(kInterleaved * stride);
  for (size_t r = first; r < first + count; ++r) {
    if (r < whole && (r - first) % kInterleaved == 0) move_set(w, w.data + r * stride, true, copy);
    const uint8_t* row = r < whole ? copy + (r - first) % kInterleaved * stride : w.data + r * stride;
    w.kernels->decode(row, w.k, w.at, out + (r - first) * w.k);
  }
}

void interleave(const Matrix& w, bool back, uint8_t* out, int threads) {
  const size_t sets = count_interleaved(w) / kInterleaved, set_bytes = kInterleaved * w.at.row_bytes,
               moved = sets * set_bytes;
  parallel_for(sets, 4, threads, [&](size_t begin, size_t end) {
    for (size_t at = begin * set_bytes; at < end * set_bytes; at += set_bytes) move_set(w, w.data + at, back, out + at);
  });
  std::memcpy(out + moved, w.data + moved, w.n * w.at.row_bytes - moved);
}

}  // namespace fewbit
