// Products: which kernel runs, on which threads, on which rows.
#include "linear.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "panels.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local ThreadWorkspace scratch, gates, rows_apart, pairs, panel_rows, part_of_panel;  // of whoever does a piece

// Columns packed for the kernels of a format, see need_by_lane.
struct LaneForm {
  const Kernels* kernels;
  bool twice;
  const void* x;
};
struct Forms {  // memory for the forms of some inputs
  ThreadWorkspace quantized[2], skinny_packed[2][2], packed, decoded;
  std::vector<LaneForm> by_lane;            // of the call under way
  std::deque<ThreadWorkspace> lane_packed;  // where they lie
};
thread_local std::deque<Forms> kept_forms;  // of the caller, by the number of the group

constexpr size_t kPanelColumns = 768;  // at once: their results stay in the second-level cache
constexpr size_t kPairs = 65536;       // results of both columns of rows that are kept in the second-level cache

// Whether a product of these rows reads panels: interleaved rows, or rows that are interleaved as it goes.
bool reads_panels(const Matrix& w, Path path) {
  return w.at.interleaved || path == Path::skinny || (path == Path::micro && w.kernels->interleaves);
}

// The inputs of a call, with the forms that its products need.
struct Call {
  Inputs in;
  int threads;
  Forms* forms;
  const void* skinny[2]
                    [2]{};  // of as many columns as rows, and of twice as many; for a scale for 16 values, and for 32

  size_t columns(bool twice) const { return twice ? 2 * in.m : in.m; }
  const Activation* codes(bool twice) const { return twice ? in.q16 : in.q8; }

  void need_floats() {
    if (in.norm.weight) return by_rows(1, [](size_t, size_t) {});
    if (in.x) return;
    float* to = forms->decoded.get<float>(in.m * in.k);
    if (in.q8 || in.q16)
      decode_activations(codes(in.q16), in.m, in.k, in.q16, to);
    else
      unpack_tiles(in.tiles, in.m, in.k, to);
    in.x = to;
  }
  void need_codes(bool twice) {
    if (codes(twice)) return;
    if (!in.x) need_floats();
    const size_t each = k_blocks_of(in.k) * (twice ? 2 : 1);
    auto* to = forms->quantized[twice].get<Activation>(in.m * each);
    by_rows(1, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) quantize_row(in.x + r * in.k, in.k, twice, to + r * each);
    });
    (twice ? in.q16 : in.q8) = to;
  }
  void need_tiles() {
    if (in.tiles) return;
    if (!in.x) need_floats();
    auto* to = forms->packed.get<uint16_t>(tile_elements(in.m, in.k));
    by_rows(16, [&](size_t begin, size_t end) {
      current_target().products.tiles->pack_columns(in.x, in.m, in.k, begin / 16, (end + 15) / 16, to);
    });
    in.tiles = to;
  }
  // Calls f(begin, end) for rows of x, after their norm where there is one. A piece is whole `unit`s of rows.
  template <class Fn>
  void by_rows(size_t unit, Fn&& f) {
    const Norm norm = in.norm;
    const float* from = in.x;
    if (norm.weight) in.x = norm.out;
    in.norm.weight = nullptr;
    const size_t worth = (8192 / (in.k + 1) / unit + 1) * unit;
    parallel_for(in.m, worth, threads, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end && norm.weight; ++r) {
        current_target().rows.norm(from + r * in.k, in.k, norm.weight, norm.eps, norm.out + r * in.k);
      }
      f(begin, end);
    });
  }
  static size_t skinny_form(const Matrix& w) { return w.kernels->group_size == 32; }
  void need_skinny(const Matrix& w, bool twice) {
    const size_t form = skinny_form(w), k_blocks = k_blocks_of(in.k), all = columns(twice);
    if (skinny[twice][form]) return;
    const Tiles& tiles = *current_target().products.tiles;
    const int group_size = w.kernels->group_size;
    const bool straight = !twice && !in.q8 && in.k % kBlockK == 0;
    straight ? need_floats() : need_codes(twice);
    const size_t bytes = tiles.skinny_bytes(group_size), sets = (all + kMostSkinny - 1) / kMostSkinny;
    auto* to = forms->skinny_packed[twice][form].get<uint8_t>(k_blocks * sets * bytes);
    parallel_for(k_blocks * sets, 4, threads, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t first = i % sets * kMostSkinny, k_block = i / sets, some = std::min(all - first, kMostSkinny);
        if (straight)
          tiles.quantize_left(group_size, in.x + first * in.k + k_block * kBlockK, in.k, some, to + i * bytes);
        else
          tiles.pack_skinny(group_size, codes(twice) + first * k_blocks + k_block, k_blocks, some, to + i * bytes);
      }
    });
    skinny[twice][form] = to;
  }
  const void* packed_by_lane(const Matrix& w, bool twice) const {
    for (const LaneForm& form : forms->by_lane) {
      if (form.kernels == w.kernels && form.twice == twice) return form.x;
    }
    return nullptr;
  }
  void need_by_lane(const Matrix& w, bool twice) {
    if (packed_by_lane(w, twice)) return;
    const LaneKernels& kernels = w.kernels->by_lane;
    const size_t k = k_blocks_of(in.k) * kBlockK, all = columns(twice), sets = (all + kLaneSet - 1) / kLaneSet,
                 number = forms->by_lane.size();
    while (forms->lane_packed.size() <= number) forms->lane_packed.emplace_back();
    auto* to = forms->lane_packed[number].get<uint8_t>(sets * kernels.set_bytes(k));
    parallel_for(sets, 8192 / (in.k + 1) + 1, threads, [&](size_t begin, size_t end) {
      for (size_t set = begin; set < end; ++set) {
        if (in.alone) {  // as if there were no other sets: many columns are packed for another kernel
          const size_t first = set * kLaneSet, bytes = kernels.set_bytes(k);
          const Activation* x = codes(twice) + first * k_blocks_of(in.k);
          kernels.pack(x, std::min(all - first, kLaneSet), k, 0, twice, to + set * bytes);
        } else {
          kernels.pack(codes(twice), all, k, set, twice, to);
        }
      }
    });
    forms->by_lane.push_back({w.kernels, twice, to});
  }
  void need(Way way, const Matrix& w) {
    switch (way.path) {
      case Path::exact: return need_floats();
      case Path::gemv:
      case Path::micro:
        need_codes(way.twice);
        if (reads_panels(w, way.path) && w.kernels->by_lane.skinny[0]) need_by_lane(w, way.twice);
        return;
      case Path::skinny: return need_skinny(w, way.twice);
      default: return need_tiles();
    }
  }
  // f(first, count, y, stride) multiplies rows by each column; here the two columns of a row in 16 bits are added.
  template <class Fn>
  void by_column(Way way, size_t rows, float* y, size_t stride, Fn&& f) const {
    if (!way.twice) return f(0, rows, y, stride);
    const size_t most = std::max(kPairs / columns(true) / kCopied, size_t{1}) * kCopied;
    float* both = pairs.get<float>(columns(true) * std::min(most, rows));
    for (size_t first = 0; first < rows; first += most) {
      const size_t count = std::min(most, rows - first);
      f(first, count, both, count);
      for (size_t c = 0; c < in.m; ++c) {
        const float *a = both + 2 * c * count, *b = a + count;
        float* to = y + c * stride + first;
        for (size_t r = 0; r < count; ++r) to[r] = a[r] + b[r];
      }
    }
  }
  // Rows `begin` to `end` of a product, to y[row of the activations][row - begin]. Where rows are read in panels,
  // `begin` is a multiple of 16.
  void rows(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    if (w.at.interleaved) return interleaved_rows(w, way, begin, end, y, stride);
    if (reads_panels(w, way.path)) return panels_of_rows(w, way, begin, end, y, stride);
    const Kernels& kernels = *w.kernels;
    const Activation* x = codes(way.twice);
    const size_t all = columns(way.twice);
    by_column(way, end - begin, y, stride, [&](size_t first, size_t count, float* to, size_t to_stride) {
      const uint8_t* from = w.data + (begin + first) * w.at.row_bytes;
      switch (way.path) {
        case Path::exact:
          return kernels.exact(from, count, w.k, w.at, in.x, in.m, to, to_stride, scratch.get<float>(kExactRows * w.k));
        case Path::gemv: return kernels.gemv(from, count, w.k, w.at, x, all, to, to_stride);
        case Path::micro:
          return kernels.micro(from, count, w.k, w.at, x, all, to, to_stride,
                               scratch.get<uint8_t>(kernels.micro_scratch(w.k)));
        default: return on_tiles(w, way.path, from, count, to, to_stride);
      }
    });
  }
  // The same of rows as they lie in the file, interleaved a few sets at a time, or of panels that end inside a k-block.
  // What is missing of the last 16 rows is multiplied and thrown away.
  void panels_of_rows(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    const Layout at = panel_layout(w);
    uint8_t* own = panel_rows.get<uint8_t>(kCopied * at.row_bytes);
    const Matrix panels{w.kernels, at, own, kCopied, k_blocks_of(w.k) * kBlockK};
    for (size_t r = begin; r < end; r += kCopied) {
      const size_t count = std::min(kCopied, end - r), whole = count / kInterleaved * kInterleaved,
                   left = count - whole;
      for (size_t i = 0; i < count; i += kInterleaved) {
        make_panel(w, r + i, std::min(count - i, kInterleaved), at, own + i * at.row_bytes);
      }
      float* to = y + (r - begin);
      if (whole > 0) on_panels(panels, way, 0, whole, to, stride);
      if (left == 0) continue;
      float* part = part_of_panel.get<float>(kInterleaved * in.m);
      on_panels(panels, way, whole, kInterleaved, part, kInterleaved);
      for (size_t c = 0; c < in.m; ++c) {
        std::copy_n(part + c * kInterleaved, left, to + c * stride + whole);
      }
    }
  }
  // `count` interleaved rows, a multiple of 16.
  void on_panels(const Matrix& w, Way way, size_t begin, size_t count, float* y, size_t stride) const {
    const Kernels& kernels = *w.kernels;
    const Activation* x = codes(way.twice);
    const size_t all = columns(way.twice);
    if (const LaneKernels& lanes = kernels.by_lane; lanes.skinny[0]) {
      const auto multiply = (in.alone || all < lanes.least_panels ? lanes.skinny : lanes.panels)[way.twice];
      return multiply(w.data + begin * w.at.row_bytes, count, w.k, w.at, packed_by_lane(w, way.twice), all, y, stride,
                      scratch.get<uint8_t>(lanes.scratch_bytes));
    }
    by_column(way, count, y, stride, [&](size_t first, size_t n, float* to, size_t to_stride) {
      const uint8_t* from = w.data + (begin + first) * w.at.row_bytes;
      if (in_bf16(way.path)) return on_tiles(w, way.path, from, n, to, to_stride);
      if (way.path == Path::skinny) {
        return kernels.skinny(from, n, w.k, w.at, skinny[way.twice][skinny_form(w)], all, to, to_stride,
                              scratch.get<uint8_t>(current_target().products.tiles->scratch_bytes(16)));
      }
      if (way.path == Path::gemv) return kernels.interleaved_gemv(from, n, w.k, w.at, x, all, to, to_stride);
      kernels.micro(from, n, w.k, w.at, x, all, to, to_stride, scratch.get<uint8_t>(kernels.micro_scratch(w.k)));
    });
  }
  // Interleaved rows, and those after the last 16 of them: what no kernel takes so is copied.
  void interleaved_rows(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    const size_t until = std::max(std::min(end, count_interleaved(w)), begin), count = until - begin;
    Matrix plain = w;
    plain.at.interleaved = false;
    if (count > 0 && has_panel_kernel(w, way.path)) {
      on_panels(w, way, begin, count, y, stride);
    } else if (count > 0 && way.path == Path::skinny) {
      panels_of_rows(w, way, begin, until, y, stride);
    } else if (count > 0) {
      uint8_t* copy = rows_apart.get<uint8_t>(kCopied * w.at.row_bytes);
      plain.data = copy;
      for (size_t r = begin; r < until; r += kCopied) {
        plain.n = std::min(kCopied, until - r);
        copy_rows(w, r, plain.n, copy);
        rows(plain, way, 0, plain.n, y + (r - begin), stride);
      }
    }
    if (until == end) return;
    plain.data = w.data;
    plain.n = w.n;
    rows(plain, way, until, end, y + count, stride);
  }
  // Columns in blocks of about the same size.
  void on_tiles(const Matrix& w, Path path, const uint8_t* from, size_t count, float* y, size_t stride) const {
    const size_t tiles = (in.m + 15) / 16, blocks = (in.m + kPanelColumns - 1) / kPanelColumns;
    const size_t each = ((tiles + blocks - 1) / blocks + 1) / 2 * 2;
    void* own = scratch.get<uint8_t>(current_target().products.tiles->scratch_bytes(each * 16));
    for (size_t t = 0; t < tiles; t += each) {
      const Columns columns{in.tiles + t * kTileBytes / sizeof(uint16_t), std::min(each, tiles - t), tiles};
      const size_t some = std::min(in.m - 16 * t, 16 * each);
      (path == Path::fused ? w.kernels->fused : w.kernels->packed)(from, count, w.k, w.at, columns, some,
                                                                   y + 16 * t * stride, stride, own);
    }
  }
};

Way way_for(const Matrix& w, const Inputs& in, Activations activations) {
  return choose(*w.kernels, w.at, w.k, in.alone ? 1 : in.m, activations);
}

void add_rest(const Product& p, size_t m, size_t begin, size_t end) {
  for (size_t c = 0; c < m && (p.bias || p.residual); ++c) {
    float* y = p.out + c * p.w.n;
    if (p.bias) {
      for (size_t r = begin; r < end; ++r) y[r] += p.bias[r];
    }
    if (p.residual) {
      const float* x = p.residual + c * p.w.n;
      for (size_t r = begin; r < end; ++r) y[r] += x[r];
    }
  }
}

// The pieces of a product, in one line with those of the others.
struct Pieces {
  const Call* call;
  const Product* product;
  Way way, gate_way;
  size_t size, first, end;  // rows of a piece; numbers of the pieces
  void run(size_t piece) const {
    const Product& p = *product;
    const size_t begin = (piece - first) * size, end = std::min(begin + size, p.w.n), m = call->in.m;
    call->rows(p.w, way, begin, end, p.out + begin, p.w.n);
    add_rest(p, m, begin, end);
    if (!p.gate.data) return;
    const size_t some = end - begin;
    float* g = gates.get<float>(some * m);
    call->rows(p.gate, gate_way, begin, end, g, some);
    for (size_t c = 0; c < m; ++c) current_target().rows.gate(p.kind, g + c * some, some, p.out + c * p.w.n + begin);
  }
};
thread_local std::vector<Call> kept_calls;
thread_local std::vector<Pieces> kept_pieces;
Pieces pieces_of(Call& call, const Product& p, Activations activations) {
  const size_t first = kept_pieces.empty() ? 0 : kept_pieces.back().end;
  Pieces out{&call, &p, way_for(p.w, call.in, activations), {}, 0, first, first};
  call.need(out.way, p.w);
  out.size = grain(out.way.path, p.w, call.threads);
  if (p.gate.data) {
    out.gate_way = way_for(p.gate, call.in, activations);
    call.need(out.gate_way, p.gate);
    out.size = std::max(out.size, grain(out.gate_way.path, p.gate, call.threads));
    out.size = (out.size + kInterleaved - 1) / kInterleaved * kInterleaved;  // whole sets, should one be interleaved
  }
  out.end = first + (p.w.n + out.size - 1) / out.size;
  return out;
}

}  // namespace

void decode(const Matrix& w, float* out, int threads) {
  parallel_for(w.n, grain(Path::exact, w, threads), threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) w.kernels->decode(w.data + r * w.at.row_bytes, w.k, w.at, out + r * w.k);
  });
}

void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, Importance weights,
            uint8_t* out, int threads) {
  const size_t size = grain(Path::exact, {&kernels, at, out, n, k}, threads);
  parallel_for(n, size, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const float* importance = weights.data ? weights.data + r * weights.stride : nullptr;
      kernels.encode(x + r * k, k, importance, at, out + r * at.row_bytes);
    }
  });
}

// Pieces of all products stand in one line, so that threads wait for each other only once.
void multiply(std::span<const Group> groups, std::span<const Product> products, Activations activations, int threads) {
  while (kept_forms.size() < groups.size()) kept_forms.emplace_back();
  kept_calls.clear();
  kept_calls.reserve(groups.size());
  kept_pieces.clear();
  for (const Group& group : groups) {
    const auto own = products.first(group.products);
    products = products.subspan(group.products);
    if (group.in.m == 0) continue;
    Forms& forms = kept_forms[kept_calls.size()];
    forms.by_lane.clear();
    Call& call = kept_calls.emplace_back(Call{group.in, threads, &forms});
    for (const Product& p : own) kept_pieces.push_back(pieces_of(call, p, activations));
  }
  if (kept_pieces.empty()) return;
  const std::span<const Pieces> all(kept_pieces);  // of this thread: others have their own
  parallel_for(all.back().end, 1, threads, [&](size_t begin, size_t end) {
    for (size_t piece = begin; piece < end; ++piece) {
      std::upper_bound(all.begin(), all.end(), piece, [](size_t i, const Pieces& p) { return i < p.end; })->run(piece);
    }
  });
}

void multiply_sets(const Matrix& w, const Inputs& inputs, Activations activations, std::span<const size_t> sets,
                   float* out, int threads) {
  if (kept_forms.empty()) kept_forms.emplace_back();
  kept_forms[0].by_lane.clear();
  Call call{inputs, threads, &kept_forms[0]};
  const Way way = way_for(w, inputs, activations);
  call.need(way, w);
  parallel_for(sets.size(), 4, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t first = sets[i] * kInterleaved;
      call.rows(w, way, first, std::min(first + kInterleaved, w.n), out + first, w.n);
    }
  });
}

void multiply(std::span<const Product> products, Inputs inputs, Activations activations, int threads) {
  if (is_too_long(inputs)) {
    return by_parts(inputs, [&](size_t first, const Inputs& some) {
      std::vector<Product> own(products.begin(), products.end());
      for (Product& p : own) {
        p.out += first * p.w.n;
        if (p.residual) p.residual += first * p.w.n;
      }
      multiply(own, some, activations, threads);
    });
  }
  const Group group{inputs, products.size()};
  multiply({&group, 1}, products, activations, threads);
}

}  // namespace fewbit
