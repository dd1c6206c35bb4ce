#include "linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

thread_local Workspace quantized, packed, few_packed[kFewForms], decoded, halved;  // of the caller: forms of the inputs
thread_local Workspace scratch, gates, apart;                                      // of whoever does a piece

constexpr size_t kMostDots = 4, kMostFew = 8, kMostStrips = 64;  // columns
constexpr size_t kMostFewAbreast = 16;
constexpr size_t kMostFine = 4;                  // rows that can be taken in 16 bits
constexpr size_t kMostTurned = size_t{1} << 27;  // bytes of a row: 16 of them are reached by 32-bit offsets
constexpr size_t kPanelColumns = 768;            // at once: their results stay in the second-level cache
constexpr size_t kTileBytes = 8192;              // of a span of 16 columns
constexpr size_t kAbreast = 16, kCopied = 64;    // rows that lie abreast; those that are copied or read in turns

size_t spans_of(size_t k) { return (k + kSpan - 1) / kSpan; }

// Rows a piece: small enough to share evenly, large enough to be worth a turn, a multiple of what the kernel takes.
size_t grain(Path path, const Matrix& w, int threads) {
  const size_t n = w.n, row_bytes = w.at.row_bytes;
  const size_t share = n / static_cast<size_t>(std::max(threads, 1));
  const auto pieces = [&](size_t count, size_t unit, size_t most) {
    return std::clamp((share / count + unit - 1) / unit * unit, unit, most);
  };
  switch (path) {
    case Path::few: return pieces(32, 16, 256);
    case Path::lanes: return pieces(16, 16, 128);
    case Path::strips: return pieces(16, 32, 256);
    case Path::panels: return pieces(4, 32, 256);
    default: break;
  }
  // As many pieces for every thread, each about as large.
  const size_t worth =
      std::clamp<size_t>(share / 16, std::min<size_t>(16384 / std::max<size_t>(row_bytes, 1) + 1, 64), 256);
  const size_t rounds = std::max<size_t>((share + worth - 1) / worth, 1);
  const size_t size = std::max<size_t>((share + rounds - 1) / rounds, 1);
  if (!w.at.abreast) return size;
  const size_t unit = share < kCopied ? kAbreast : kCopied;
  return (size + unit - 1) / unit * unit;
}

FewForm few_form(const Matrix& w) {
  if (w.at.abreast && w.kernels->few_abreast) return w.kernels->sub == 16 ? FewForm::left16 : FewForm::left32;
  return w.kernels->sub == 16 ? FewForm::right16 : FewForm::right32;
}
// 16 rows to where they lie abreast, and back.
void move_set(const Matrix& w, const uint8_t* from, bool back, uint8_t* out) {
  const AbreastMoves& move = current_target().abreast;
  const size_t stride = w.at.row_bytes, bytes = w.kernels->laid_at_once ? w.kernels->laid_at_once : stride;
  for (size_t at = 0; at < stride; at += bytes) {
    if (back)
      move.from(from + kAbreast * at, bytes, out + at, stride);
    else
      move.to(from + at, stride, bytes, out + kAbreast * at);
  }
}
size_t count_abreast(const Matrix& w) { return w.at.abreast ? w.n / kAbreast * kAbreast : 0; }

// The inputs of a call, with the forms that its products need.
struct Call {
  Inputs in;
  std::array<const void*, kFewForms> few{};  // by FewForm
  int threads;

  void need_floats() {
    if (in.norm.weight) return by_rows(1, [](size_t, size_t) {});
    if (in.x) return;
    float* to = decoded.get<float>(in.m * in.k);
    if (in.q8)
      decode_activations(in.q8, in.m, in.k, to);
    else
      unpack_tiles(in.tiles, in.m, in.k, to);
    in.x = to;
  }
  void need_q8() {
    if (in.q8) return;
    if (!in.x) need_floats();
    auto* to = quantized.get<Activation>(activation_count(in.m, in.k));
    by_rows(1, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r)
        current_target().quantize_row(in.x + r * in.k, in.k, to + r * spans_of(in.k));
    });
    in.q8 = to;
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
  void need_few(FewForm form) {
    const size_t which = static_cast<size_t>(form), spans = spans_of(in.k);
    if (few[which]) return;
    const Tiles& tiles = *current_target().tiles;
    const bool straight = is_left(form) && !in.q8;
    straight ? need_floats() : need_q8();
    const size_t bytes = tiles.few_bytes(form), sets = (in.m + kMostFew - 1) / kMostFew;
    auto* to = few_packed[which].get<uint8_t>(spans * sets * bytes);
    parallel_for(spans * sets, 4, threads, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t first = i % sets * kMostFew, span = i / sets, columns = std::min(in.m - first, kMostFew);
        if (straight)
          tiles.quantize_left(form, in.x + first * in.k + span * kSpan, in.k, columns, to + i * bytes);
        else
          tiles.pack_few(form, in.q8 + first * spans + span, spans, columns, to + i * bytes);
      }
    });
    few[which] = to;
  }
  // 16 bits as twice 8: each row, and then, as rows of their own, what 8 bits lose of each.
  void halve() {
    need_floats();
    const size_t size = in.m * in.k;
    float* to = halved.get<float>(2 * size);
    auto* codes = quantized.get<Activation>(activation_count(in.m, in.k));
    quantize_activations(in.x, in.m, in.k, codes, threads);
    decode_activations(codes, in.m, in.k, to + size);
    for (size_t i = 0; i < size; ++i) {
      to[i] = in.x[i];
      to[size + i] = in.x[i] - to[size + i];
    }
    in = {2 * in.m, in.k, to};
  }
  void need(Path path, const Matrix& w) {
    switch (path) {
      case Path::exact: return need_floats();
      case Path::dot:
      case Path::lanes: return need_q8();
      case Path::few:
        if (count_abreast(w) != w.n) need_q8();  // for rows that are left
        return need_few(few_form(w));
      default: return need_tiles();
    }
  }
  // Rows `begin` to `end` of a product, to y[column][row - begin].
  void rows(const Matrix& w, Path path, size_t begin, size_t end, float* y, size_t stride) const {
    const Kernels& kernels = *w.kernels;
    const uint8_t* from = w.data + begin * w.at.row_bytes;
    const size_t count = end - begin;
    if (w.at.abreast) return rows_abreast(w, path, begin, end, y, stride);
    switch (path) {
      case Path::exact:
        return kernels.exact(from, count, w.k, w.at, in.x, in.m, y, stride, scratch.get<float>(kExactRows * w.k));
      case Path::dot: return kernels.dot(from, count, w.k, w.at, in.q8, in.m, y, stride);
      case Path::lanes:
        return kernels.lanes(from, count, w.k, w.at, in.q8, in.m, y, stride,
                             scratch.get<uint8_t>(kernels.lane_scratch(w.k)));
      case Path::few:
        return kernels.few(from, count, w.k, w.at, few[static_cast<size_t>(few_form(w))], in.m, y, stride,
                           scratch.get<uint8_t>(current_target().tiles->scratch_bytes(16)));
      case Path::strips:
      case Path::panels: return on_tiles(w, path, from, count, y, stride);
    }
  }
  // The same of rows that lie abreast: what no kernel takes so is copied. `begin` is a multiple of 16.
  void rows_abreast(const Matrix& w, Path path, size_t begin, size_t end, float* y, size_t stride) const {
    const Kernels& kernels = *w.kernels;
    const size_t whole = count_abreast(w), until = std::max(std::min(end, whole), begin), count = until - begin;
    const uint8_t* from = w.data + begin * w.at.row_bytes;
    Matrix plain = w;
    plain.at.abreast = false;
    if (path == Path::few && kernels.few_abreast) {
      if (count > 0) {
        kernels.few_abreast(from, count, w.k, w.at, few[static_cast<size_t>(few_form(w))], in.m, y, stride,
                            scratch.get<uint8_t>(current_target().tiles->scratch_bytes(16)));
      }
      path = Path::dot;  // for what is left: fewer than 16 rows
    } else if (path == Path::dot && kernels.abreast) {
      if (count > 0) kernels.abreast(from, count, w.k, w.at, in.q8, in.m, y, stride);
    } else if (path == Path::lanes && kernels.lanes_abreast) {
      if (count > 0) {
        kernels.lanes_abreast(from, count, w.k, w.at, in.q8, in.m, y, stride,
                              scratch.get<uint8_t>(kernels.lane_scratch(w.k)));
      }
    } else if (path == Path::strips || path == Path::panels) {
      if (count > 0) on_tiles(w, path, from, count, y, stride);
    } else {
      uint8_t* copy = apart.get<uint8_t>(kCopied * w.at.row_bytes);
      plain.data = copy;
      for (size_t r = begin; r < until; r += kCopied) {
        plain.n = std::min(kCopied, until - r);
        copy_rows(w, r, plain.n, copy);
        rows(plain, path, 0, plain.n, y + (r - begin), stride);
      }
    }
    if (until == end) return;
    plain.data = w.data;
    plain.n = w.n;
    rows(plain, path, until, end, y + count, stride);
  }
  static void copy_rows(const Matrix& w, size_t first, size_t count, uint8_t* out) {
    const uint8_t* from = w.data + first * w.at.row_bytes;
    for (size_t at = 0; at < count * w.at.row_bytes; at += kAbreast * w.at.row_bytes) {
      move_set(w, from + at, true, out + at);
    }
  }
  // The same of rows that were halved, put together.
  void fine_rows(const Product& p, Path path, size_t begin, size_t end) const {
    const size_t count = end - begin, m = in.m / 2;
    float* parts = gates.get<float>(in.m * count);
    rows(p.w, path, begin, end, parts, count);
    for (size_t c = 0; c < m; ++c) {
      float* y = p.out + c * p.w.n + begin;
      for (size_t r = 0; r < count; ++r) y[r] = parts[c * count + r] + parts[(m + c) * count + r];
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
      (path == Path::strips ? w.kernels->strips : w.kernels->panels)(from, count, w.k, w.at, columns, some,
                                                                     y + 16 * t * stride, stride, own);
    }
  }
};

Path path_for(const Matrix& w, size_t m, bool exact) { return exact ? Path::exact : choose(*w.kernels, w.at, w.k, m); }

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

size_t activation_count(size_t m, size_t k) { return m * spans_of(k); }
size_t tile_elements(size_t m, size_t k) { return spans_of(k) * ((m + 15) / 16) * kTileBytes / sizeof(uint16_t); }
bool wants_tiles(size_t m) { return current_target().tiles && m > kMostFew; }

Path choose(const Kernels& kernels, const Layout& at, size_t k, size_t m) {
  if (k == 0 || (kernels.dot && !has_dot(kernels, at, k))) return Path::exact;
  if (at.abreast && kernels.few_abreast && m > kMostDots && m <= kMostFewAbreast) return Path::few;
  if (kernels.panels && m > kMostStrips) return Path::panels;
  if (kernels.strips && m > kMostFew) return Path::strips;
  if (!kernels.dot) return Path::exact;
  if (at.row_bytes >= kMostTurned) return Path::dot;
  if (kernels.few && m > kMostDots) return Path::few;
  if (kernels.lanes && m >= (at.abreast && kernels.lanes_abreast ? kMostDots + 1 : kernels.least_lanes)) {
    return Path::lanes;
  }
  return Path::dot;
}

const char* path_name(Path path) {
  switch (path) {
    case Path::exact: return "f32";
    case Path::dot: return "dot";
    case Path::lanes: return "lanes";
    case Path::few: return "few";
    case Path::strips: return "strips";
    default: return "panels";
  }
}

void quantize_activations(const float* x, size_t m, size_t k, Activation* out, int threads) {
  const Target& target = current_target();
  const size_t spans = spans_of(k);
  parallel_for(m, 8192 / (k + 1) + 1, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) target.quantize_row(x + r * k, k, out + r * spans);
  });
}

void pack_tiles(const float* x, size_t m, size_t k, uint16_t* out, int threads) {
  const Tiles& tiles = *current_target().tiles;
  parallel_for((m + 15) / 16, 1, threads,
               [&](size_t begin, size_t end) { tiles.pack_columns(x, m, k, begin, end, out); });
}

void decode_activations(const Activation* x, size_t m, size_t k, float* out) {
  const size_t spans = spans_of(k);
  for (size_t r = 0; r < m; ++r) {
    for (size_t i = 0; i < k; ++i) {
      const Activation& a = x[r * spans + i / kSpan];
      out[r * k + i] = static_cast<float>(a.q[i % kSpan]) * a.d32[i % kSpan / 32];
    }
  }
}

// Tiles of 16 columns and 32 values: of every 64 values first the even ones, then the odd ones, two and two.
void unpack_tiles(const uint16_t* x, size_t m, size_t k, float* out) {
  const size_t tiles = (m + 15) / 16;
  for (size_t c = 0; c < m; ++c) {
    const uint16_t* column = x + c / 16 * 4096 + c % 16 * 2;
    for (size_t i = 0; i < k; ++i) {
      const size_t tile = i % kSpan / 64 * 2 + i % 2, pair = i % 64 / 4, which = i % 64 / 2 % 2;
      const uint32_t bits = column[i / kSpan * tiles * 4096 + tile * 512 + pair * 32 + which];
      out[c * k + i] = std::bit_cast<float>(bits << 16);
    }
  }
}

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

void move_abreast(const Matrix& w, bool back, uint8_t* out, int threads) {
  const size_t sets = count_abreast(w) / kAbreast, set_bytes = kAbreast * w.at.row_bytes, moved = sets * set_bytes;
  parallel_for(sets, 4, threads, [&](size_t begin, size_t end) {
    for (size_t at = begin * set_bytes; at < end * set_bytes; at += set_bytes) move_set(w, w.data + at, back, out + at);
  });
  std::memcpy(out + moved, w.data + moved, w.n * w.at.row_bytes - moved);
}

// Pieces of all products stand in one line, so that threads wait for each other only once.
void multiply(std::span<const Product> products, Inputs inputs, bool exact, int threads) {
  if (inputs.m == 0) return;
  Call call{inputs, {}, threads};
  const bool fine = inputs.fine && inputs.m <= kMostFine && std::ranges::all_of(products, [&](const Product& p) {
                      return path_for(p.w, 2 * inputs.m, exact) != Path::exact;
                    });
  if (fine) call.halve();
  const auto path_of = [&](const Product& p) { return path_for(p.w, call.in.m, exact); };
  const auto size_of = [&](const Product& p) { return grain(path_of(p), p.w, threads); };
  size_t pieces = 0;
  for (const Product& p : products) {
    call.need(path_of(p), p.w);
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
        if (fine)
          call.fine_rows(p, path_of(p), first, last);
        else
          call.rows(p.w, path_of(p), first, last, p.out + first, p.w.n);
        add_rest(p, inputs.m, first, last);
        break;
      }
    }
  });
}

void multiply_gated(const Matrix& gate, const Matrix& up, Gate kind, Inputs inputs, float* out, bool exact,
                    int threads) {
  if (inputs.m == 0) return;
  Call call{inputs, {}, threads};
  const Path gate_path = path_for(gate, inputs.m, exact), up_path = path_for(up, inputs.m, exact);
  call.need(gate_path, gate);
  call.need(up_path, up);
  size_t size = std::max(grain(gate_path, gate, threads), grain(up_path, up, threads));
  if (gate.at.abreast || up.at.abreast) size = (size + kAbreast - 1) / kAbreast * kAbreast;
  parallel_for(gate.n, size, threads, [&](size_t begin, size_t end) {
    const size_t count = end - begin;
    float* g = gates.get<float>(count * inputs.m);
    call.rows(gate, gate_path, begin, end, g, count);
    call.rows(up, up_path, begin, end, out + begin, gate.n);
    for (size_t c = 0; c < inputs.m; ++c) {
      current_target().rows.gate(kind, g + c * count, count, out + c * gate.n + begin);
    }
  });
}

}  // namespace fewbit
