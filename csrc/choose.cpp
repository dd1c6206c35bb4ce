// Which kernel makes a product, and how many rows are a piece of work.
#include <algorithm>

#include "linear.h"

namespace fewbit {
namespace {

constexpr size_t kMostGemv = 4, kMostInterleavedSkinny = 16, kMostFused = 64;  // columns

Path path_for(const Kernels& kernels, const Layout& at, size_t k, size_t columns) {
  if (k == 0 || (kernels.gemv && !has_dot(kernels, at, k))) return Path::exact;
  const bool panels = at.interleaved || has_panels(kernels, at, k);
  if (panels && kernels.skinny && columns > kMostGemv &&
      columns <= (at.interleaved ? kMostInterleavedSkinny : kMostSkinny))
    return Path::skinny;
  if (kernels.packed && columns > kMostFused) return Path::packed;
  if (kernels.fused && columns > kMostSkinny) return Path::fused;
  if (!kernels.gemv) return Path::exact;
  const bool has_micro = (panels || !kernels.interleaves) && (kernels.micro || kernels.by_lane.panels[0]);
  return has_micro && columns >= (at.interleaved ? kMostGemv + 1 : kernels.least_micro) ? Path::micro : Path::gemv;
}

}  // namespace

// 16 bits are twice as many columns; where those would go to bf16, rows do as they are.
Way choose(const Kernels& kernels, const Layout& at, size_t k, size_t m, Activations activations) {
  if (activations == Activations::usual && m <= current_target().products.int16_rows) activations = Activations::int16;
  if (activations == Activations::exact) return {Path::exact, false};
  if (activations != Activations::int16) return {path_for(kernels, at, k, m), false};
  const Path path = path_for(kernels, at, k, 2 * m);
  if (in_bf16(path)) return {path_for(kernels, at, k, std::max(m, kMostInterleavedSkinny + 1)), false};
  return {path, path != Path::exact};
}

size_t grain(Path path, const Matrix& w, int threads) {
  const size_t n = w.n, row_bytes = w.at.row_bytes;
  const size_t share = n / static_cast<size_t>(std::max(threads, 1));
  const auto pieces = [&](size_t count, size_t unit, size_t most) {
    return std::clamp((share / count + unit - 1) / unit * unit, unit, most);
  };
  switch (path) {
    case Path::skinny: return pieces(32, 16, 256);
    case Path::micro: return pieces(16, 16, 128);
    case Path::fused: return pieces(16, 32, 256);
    case Path::packed: return pieces(4, 32, 256);
    default: break;
  }
  // As many pieces for every thread, each about as large.
  const size_t worth =
      std::clamp<size_t>(share / 16, std::min<size_t>(16384 / std::max<size_t>(row_bytes, 1) + 1, 64), 256);
  const size_t rounds = std::max<size_t>((share + worth - 1) / worth, 1);
  const size_t size = std::max<size_t>((share + rounds - 1) / rounds, 1);
  if (!w.at.interleaved) return size;
  const size_t unit = share < kCopied ? kInterleaved : kCopied;
  return (size + unit - 1) / unit * unit;
}

bool has_panel_kernel(const Matrix& w, Path path) {
  const Kernels& kernels = *w.kernels;
  const bool whole = w.k % kBlockK == 0;
  switch (path) {
    case Path::exact: return false;
    case Path::gemv: return kernels.interleaved_gemv || (whole && kernels.by_lane.skinny[0]);
    case Path::micro: return kernels.micro || (whole && kernels.by_lane.panels[0]);
    default: return whole;
  }
}

const char* path_name(Path path) {
  switch (path) {
    case Path::exact: return "f32";
    case Path::gemv: return "gemv";
    case Path::micro: return "micro";
    case Path::skinny: return "skinny";
    case Path::fused: return "fused";
    default: return "packed";
  }
}

const char* inputs_name(Way way) {
  if (way.path == Path::exact) return "f32";
  if (in_bf16(way.path)) return "bf16";
  return way.twice ? "q16" : "q8";
}

}  // namespace fewbit
