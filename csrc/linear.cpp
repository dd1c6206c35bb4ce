// Products: which kernel runs, on which threads, on which rows.
#include "linear.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local Workspace quantized[2], skinny_packed[2][kSkinnyForms], packed,
    decoded;                                          // of the caller: forms of the inputs
thread_local Workspace scratch, gates, apart, pairs;  // of whoever does a piece

// Columns packed for the kernels of a format, see need_by_lane.
struct LaneForm {
  const Kernels* kernels;
  bool twice;
  const void* x;
};
thread_local std::vector<LaneForm> lane_forms;    // of the call under way
thread_local std::vector<Workspace> lane_packed;  // where they lie, kept
std::vector<LaneForm>& no_lane_forms() {
  lane_forms.clear();
  return lane_forms;
}

constexpr size_t kPanelColumns = 768;  // at once: their results stay in the second-level cache
constexpr size_t kPairs = 65536;       // results of both columns of rows that are kept in the second-level cache
constexpr size_t kInterleaved = 16, kCopied = 64;  // interleaved rows; those that are copied or read alternately

// Rows a piece: small enough to share evenly, large enough to be worth a call, a multiple of what the kernel takes.
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

SkinnyForm skinny_form(const Matrix& w) {
  if (w.at.interleaved && w.kernels->interleaved_skinny)
    return w.kernels->group_size == 16 ? SkinnyForm::left16 : SkinnyForm::left32;
  return w.kernels->group_size == 16 ? SkinnyForm::right16 : SkinnyForm::right32;
}
// 16 rows interleaved, and back.
void move_set(const Matrix& w, const uint8_t* from, bool back, uint8_t* out) {
  const InterleaveMoves& move = current_target().interleave;
  const size_t stride = w.at.row_bytes, bytes = w.kernels->laid_at_once ? w.kernels->laid_at_once : stride;
  for (size_t at = 0; at < stride; at += bytes) {
    if (back)
      move.from(from + kInterleaved * at, bytes, out + at, stride);
    else
      move.to(from + at, stride, bytes, out + kInterleaved * at);
  }
}
size_t count_interleaved(const Matrix& w) { return w.at.interleaved ? w.n / kInterleaved * kInterleaved : 0; }

// The inputs of a call, with the forms that its products need.
struct Call {
  Inputs in;
  int threads;
  std::array<const void*, kSkinnyForms> skinny[2]{};  // of as many columns as rows, and of twice as many; by SkinnyForm
  std::vector<LaneForm>& by_lane = no_lane_forms();

  size_t columns(bool twice) const { return twice ? 2 * in.m : in.m; }
  const Activation* codes(bool twice) const { return twice ? in.q16 : in.q8; }

  void need_floats() {
    if (in.norm.weight) return by_rows(1, [](size_t, size_t) {});
    if (in.x) return;
    float* to = decoded.get<float>(in.m * in.k);
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
    auto* to = quantized[twice].get<Activation>(in.m * each);
    by_rows(1, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) quantize_row(in.x + r * in.k, in.k, twice, to + r * each);
    });
    (twice ? in.q16 : in.q8) = to;
  }
  void need_tiles() {
    if (in.tiles) return;
    if (!in.x) need_floats();
    auto* to = packed.get<uint16_t>(tile_elements(in.m, in.k));
    by_rows(16, [&](size_t begin, size_t end) {
      current_target().tiles->pack_columns(in.x, in.m, in.k, begin / 16, (end + 15) / 16, to);
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
  void need_skinny(SkinnyForm form, bool twice) {
    const size_t which = static_cast<size_t>(form), k_blocks = k_blocks_of(in.k), all = columns(twice);
    if (skinny[twice][which]) return;
    const Tiles& tiles = *current_target().tiles;
    const bool straight = is_left(form) && !twice && !in.q8;
    straight ? need_floats() : need_codes(twice);
    const size_t bytes = tiles.skinny_bytes(form), sets = (all + kMostSkinny - 1) / kMostSkinny;
    auto* to = skinny_packed[twice][which].get<uint8_t>(k_blocks * sets * bytes);
    parallel_for(k_blocks * sets, 4, threads, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t first = i % sets * kMostSkinny, k_block = i / sets, some = std::min(all - first, kMostSkinny);
        if (straight)
          tiles.quantize_left(form, in.x + first * in.k + k_block * kBlockK, in.k, some, to + i * bytes);
        else
          tiles.pack_skinny(form, codes(twice) + first * k_blocks + k_block, k_blocks, some, to + i * bytes);
      }
    });
    skinny[twice][which] = to;
  }
  const void* packed_by_lane(const Matrix& w, bool twice) const {
    for (const LaneForm& form : by_lane) {
      if (form.kernels == w.kernels && form.twice == twice) return form.x;
    }
    return nullptr;
  }
  void need_by_lane(const Matrix& w, bool twice) {
    if (packed_by_lane(w, twice)) return;
    const LaneKernels& kernels = w.kernels->by_lane;
    const size_t all = columns(twice), sets = (all + kLaneSet - 1) / kLaneSet, number = by_lane.size();
    if (lane_packed.size() <= number) lane_packed.resize(number + 1);
    auto* to = lane_packed[number].get<uint8_t>(sets * kernels.set_bytes(in.k));
    parallel_for(sets, 8192 / (in.k + 1) + 1, threads, [&](size_t begin, size_t end) {
      for (size_t set = begin; set < end; ++set) kernels.pack(codes(twice), all, in.k, set, to);
    });
    by_lane.push_back({w.kernels, twice, to});
  }
  void need(Way way, const Matrix& w) {
    switch (way.path) {
      case Path::exact: return need_floats();
      case Path::gemv:
      case Path::micro:
        need_codes(way.twice);
        if (w.at.interleaved && w.kernels->by_lane.skinny) need_by_lane(w, way.twice);
        return;
      case Path::skinny:
        if (count_interleaved(w) != w.n) need_codes(way.twice);  // for rows that are left
        return need_skinny(skinny_form(w), way.twice);
      default: return need_tiles();
    }
  }
  // Rows `begin` to `end` of a product, to y[row of the activations][row - begin].
  void rows(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    if (!way.twice) return columns_of(w, way, begin, end, y, stride);
    const size_t most = std::max(kPairs / columns(true) / kCopied, size_t{1}) * kCopied;
    float* both = pairs.get<float>(columns(true) * std::min(most, end - begin));
    for (size_t first = begin; first < end; first += most) {
      const size_t count = std::min(most, end - first);
      columns_of(w, way, first, first + count, both, count);
      for (size_t c = 0; c < in.m; ++c) {
        const float *a = both + 2 * c * count, *b = a + count;
        float* to = y + c * stride + (first - begin);
        for (size_t r = 0; r < count; ++r) to[r] = a[r] + b[r];
      }
    }
  }
  // The same, to y[column][row - begin].
  void columns_of(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    const Kernels& kernels = *w.kernels;
    const Activation* x = codes(way.twice);
    const size_t all = columns(way.twice);
    const uint8_t* from = w.data + begin * w.at.row_bytes;
    const size_t count = end - begin;
    if (w.at.interleaved) return interleaved_columns(w, way, begin, end, y, stride);
    switch (way.path) {
      case Path::exact:
        return kernels.exact(from, count, w.k, w.at, in.x, in.m, y, stride, scratch.get<float>(kExactRows * w.k));
      case Path::gemv: return kernels.gemv(from, count, w.k, w.at, x, all, y, stride);
      case Path::micro:
        return kernels.micro(from, count, w.k, w.at, x, all, y, stride,
                             scratch.get<uint8_t>(kernels.micro_scratch(w.k)));
      case Path::skinny:
        return kernels.skinny(from, count, w.k, w.at, skinny[way.twice][static_cast<size_t>(skinny_form(w))], all, y,
                              stride, scratch.get<uint8_t>(current_target().tiles->scratch_bytes(16)));
      case Path::fused:
      case Path::packed: return on_tiles(w, way.path, from, count, y, stride);
    }
  }
  // The same of interleaved rows: what no kernel takes so is copied. `begin` is a multiple of 16.
  void interleaved_columns(const Matrix& w, Way way, size_t begin, size_t end, float* y, size_t stride) const {
    const Kernels& kernels = *w.kernels;
    const Activation* x = codes(way.twice);
    const size_t all = columns(way.twice);
    const size_t whole = count_interleaved(w), until = std::max(std::min(end, whole), begin), count = until - begin;
    const uint8_t* from = w.data + begin * w.at.row_bytes;
    Matrix plain = w;
    plain.at.interleaved = false;
    if (way.path == Path::skinny && kernels.interleaved_skinny) {
      if (count > 0) {
        kernels.interleaved_skinny(from, count, w.k, w.at, skinny[way.twice][static_cast<size_t>(skinny_form(w))], all,
                                   y, stride, scratch.get<uint8_t>(current_target().tiles->scratch_bytes(16)));
      }
      way.path = Path::gemv;  // for what is left: fewer than 16 rows
    } else if ((way.path == Path::gemv || way.path == Path::micro) && kernels.by_lane.skinny) {
      const LaneKernels& lanes = kernels.by_lane;
      const auto multiply = all < lanes.least_panels ? lanes.skinny : lanes.panels;
      if (count > 0) {
        multiply(from, count, w.k, w.at, packed_by_lane(w, way.twice), all, y, stride,
                 scratch.get<uint8_t>(lanes.scratch_bytes));
      }
    } else if (way.path == Path::gemv && kernels.interleaved_gemv) {
      if (count > 0) kernels.interleaved_gemv(from, count, w.k, w.at, x, all, y, stride);
    } else if (way.path == Path::micro && kernels.interleaved_micro) {
      if (count > 0) {
        kernels.interleaved_micro(from, count, w.k, w.at, x, all, y, stride,
                                  scratch.get<uint8_t>(kernels.micro_scratch(w.k)));
      }
    } else if (in_bf16(way.path)) {
      if (count > 0) on_tiles(w, way.path, from, count, y, stride);
    } else {
      uint8_t* copy = apart.get<uint8_t>(kCopied * w.at.row_bytes);
      plain.data = copy;
      for (size_t r = begin; r < until; r += kCopied) {
        plain.n = std::min(kCopied, until - r);
        copy_rows(w, r, plain.n, copy);
        columns_of(plain, way, 0, plain.n, y + (r - begin), stride);
      }
    }
    if (until == end) return;
    plain.data = w.data;
    plain.n = w.n;
    columns_of(plain, way, until, end, y + count, stride);
  }
  static void copy_rows(const Matrix& w, size_t first, size_t count, uint8_t* out) {
    const uint8_t* from = w.data + first * w.at.row_bytes;
    for (size_t at = 0; at < count * w.at.row_bytes; at += kInterleaved * w.at.row_bytes) {
      move_set(w, from + at, true, out + at);
    }
  }
  // Columns in blocks of about the same size.
  void on_tiles(const Matrix& w, Path path, const uint8_t* from, size_t count, float* y, size_t stride) const {
    const size_t tiles = (in.m + 15) / 16, blocks = (in.m + kPanelColumns - 1) / kPanelColumns;
    const size_t each = ((tiles + blocks - 1) / blocks + 1) / 2 * 2;
    void* own = scratch.get<uint8_t>(current_target().tiles->scratch_bytes(each * 16));
    for (size_t t = 0; t < tiles; t += each) {
      const Columns columns{in.tiles + t * kTileBytes / sizeof(uint16_t), std::min(each, tiles - t), tiles};
      const size_t some = std::min(in.m - 16 * t, 16 * each);
      (path == Path::fused ? w.kernels->fused : w.kernels->packed)(from, count, w.k, w.at, columns, some,
                                                                   y + 16 * t * stride, stride, own);
    }
  }
};

Way way_for(const Matrix& w, size_t m, Activations activations) {
  return choose(*w.kernels, w.at, w.k, m, activations);
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

}  // namespace

void decode(const Matrix& w, float* out, int threads) {
  parallel_for(w.n, grain(Path::exact, w, threads), threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) w.kernels->decode(w.data + r * w.at.row_bytes, w.k, w.at, out + r * w.k);
  });
}

void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, const float* importance,
            uint8_t* out, int threads) {
  const size_t size = grain(Path::exact, {&kernels, at, out, n, k}, threads);
  parallel_for(n, size, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) kernels.encode(x + r * k, k, importance, at, out + r * at.row_bytes);
  });
}

void interleave(const Matrix& w, bool back, uint8_t* out, int threads) {
  const size_t sets = count_interleaved(w) / kInterleaved, set_bytes = kInterleaved * w.at.row_bytes,
               moved = sets * set_bytes;
  parallel_for(sets, 4, threads, [&](size_t begin, size_t end) {
    for (size_t at = begin * set_bytes; at < end * set_bytes; at += set_bytes) move_set(w, w.data + at, back, out + at);
  });
  std::memcpy(out + moved, w.data + moved, w.n * w.at.row_bytes - moved);
}

// Pieces of all products stand in one line, so that threads wait for each other only once.
void multiply(std::span<const Product> products, Inputs inputs, Activations activations, int threads) {
  if (inputs.m == 0) return;
  Call call{inputs, threads};
  const auto way_of = [&](const Product& p) { return way_for(p.w, inputs.m, activations); };
  const auto size_of = [&](const Product& p) { return grain(way_of(p).path, p.w, threads); };
  size_t pieces = 0;
  for (const Product& p : products) {
    call.need(way_of(p), p.w);
    pieces += (p.w.n + size_of(p) - 1) / size_of(p);
  }
  parallel_for(pieces, 1, threads, [&](size_t begin, size_t end) {
    for (size_t piece = begin; piece < end; ++piece) {
      size_t i = piece;
      for (const Product& p : products) {
        const size_t size = size_of(p), mine = (p.w.n + size - 1) / size;
        if (i >= mine) {
          i -= mine;
          continue;
        }
        const size_t first = i * size, last = std::min(first + size, p.w.n);
        call.rows(p.w, way_of(p), first, last, p.out + first, p.w.n);
        add_rest(p, inputs.m, first, last);
        break;
      }
    }
  });
}

void multiply_gated(const Matrix& gate, const Matrix& up, Gate kind, Inputs inputs, float* out, Activations activations,
                    int threads) {
  if (inputs.m == 0) return;
  Call call{inputs, threads};
  const Way gate_way = way_for(gate, inputs.m, activations), up_way = way_for(up, inputs.m, activations);
  call.need(gate_way, gate);
  call.need(up_way, up);
  size_t size = std::max(grain(gate_way.path, gate, threads), grain(up_way.path, up, threads));
  if (gate.at.interleaved || up.at.interleaved) size = (size + kInterleaved - 1) / kInterleaved * kInterleaved;
  parallel_for(gate.n, size, threads, [&](size_t begin, size_t end) {
    const size_t count = end - begin;
    float* g = gates.get<float>(count * inputs.m);
    call.rows(gate, gate_way, begin, end, g, count);
    call.rows(up, up_way, begin, end, out + begin, gate.n);
    for (size_t c = 0; c < inputs.m; ++c) {
      current_target().rows.gate(kind, g + c * count, count, out + c * gate.n + begin);
    }
  });
}

}  // namespace fewbit
