// Rows of K and V to and from their pages, as rows or as slabs of tiles.
#include "kv_rows.h"

#include <algorithm>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local ThreadWorkspace scratch;  // a row, and the same packed

}  // namespace

size_t kv_row_values(const Kernels& kernels, size_t dim) { return kernels.kv.block == 1 ? dim : padded(dim); }

void rotate_row(const Target& target, const float* x, size_t dim, float by, float* out) {
  const size_t size = dim & -dim;
  for (size_t i = 0; i < dim; i += size) target.rows.rotate(x + i, size, by, out + i);
}

void write_row(const Store& to, const Heads& heads, bool rotates, const float* x, size_t slot, size_t head) {
  const size_t dim = to.dim, page = slot / heads.page_tokens, place = slot % heads.page_tokens;
  float* row = scratch.get<float>(to.pad() + to.at.row_bytes);
  if (rotates || dim % 32 != 0) {
    if (rotates)
      rotate_row(current_target(), x, dim, 1, row);
    else
      std::copy_n(x, dim, row);
    std::fill(row + dim, row + to.pad(), 0.0f);
    x = row;
  }
  const size_t number = (page * heads.kv_heads + head) * heads.page_tokens + place;
  const size_t values = kv_row_values(*to.kernels, dim);
  if (!to.tiled()) return to.kernels->encode(x, values, nullptr, to.at, to.data + number * to.at.row_bytes);
  const KvKernels& kv = to.kernels->kv;
  const bool is_value = to.order == Order::value_tiles;
  const size_t token = number % kKvTokens;
  uint8_t* slab = to.data + (number - token) * to.at.row_bytes;
  if (kv.quick_to_tiled && kv.quick_to_tiled(x, token, dim, is_value, slab)) return;
  auto* packed = reinterpret_cast<uint8_t*>(row + to.pad());
  to.kernels->encode(x, values, nullptr, to.at, packed);
  kv.to_tiled(packed, token, dim, is_value, slab);
}

void kv_write(const Store& to, const Heads& heads, const float* x, const int64_t* slots, size_t tokens, int threads) {
  parallel_for(tokens * heads.kv_heads, 4096 / (to.dim + 1) + 1, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto slot = static_cast<size_t>(slots[i / heads.kv_heads]);
      write_row(to, heads, heads.rotate, x + i * to.dim, slot, i % heads.kv_heads);
    }
  });
}

}  // namespace fewbit
