#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kSplit = 2048;   // tokens of the context that one piece of work reads
constexpr size_t kMostRows = 64;  // queries times heads that share K and V, in one piece
constexpr size_t kMostOnTiles = 128;
constexpr size_t kFewRows = 8;  // up to so many, K and V are decoded where they are used

thread_local Workspace scratch;          // of whoever does a piece
thread_local Workspace partial_results;  // of the caller

size_t padded(size_t dim) { return (dim + 31) / 32 * 32; }

void rotate(const Target& target, float* x, size_t dim) {
  const size_t size = dim & -dim;  // the largest power of two that divides it
  for (size_t i = 0; i < dim; i += size) target.rotate(x + i, size);
}

size_t pairs_of_tiles(size_t rows) { return (rows + 31) / 32 * 32; }

// Memory for one piece of work.
struct Scratch {
  float *queries, *acc, *scores, *tile;
  KvState* state;
  float* factors;
  uint16_t *query_tiles, *k_tiles, *v_tiles, *weights;  // with matrix tiles only

  Scratch(size_t rows, size_t pad, size_t steps) {
    const size_t some = pairs_of_tiles(rows), wide = 32 * steps;
    const size_t floats = 2 * some * pad + some * kKvTokens + kKvTokens * pad + 3 * some;
    queries = scratch.get<float>(floats + (some * (wide + 32) + 32 * (wide + pad)) / 2);
    acc = queries + some * pad;
    scores = acc + some * pad;
    tile = scores + some * kKvTokens;
    state = reinterpret_cast<KvState*>(tile + kKvTokens * pad);
    factors = reinterpret_cast<float*>(state + some);
    query_tiles = reinterpret_cast<uint16_t*>(factors + some);
    k_tiles = query_tiles + some * wide;
    v_tiles = k_tiles + 32 * wide;
    weights = v_tiles + 32 * pad;
  }
};

// Some queries of a sequence, one KV head, a part of the context.
struct Work {
  size_t sequence, head;
  size_t first, count;    // queries, by their place in the sequence's
  size_t from, to;        // positions of the context
  size_t parts, partial;  // how many pieces share the queries; where their results are kept, if more than one
};

struct Call {
  const Store &k, &v;
  const Heads& heads;
  const Sequences& sequences;
  const Logits& logits;
  const float* q;
  size_t q_heads;
  float* out;
  bool exact;
  const Target& target = current_target();
  const TileAttention* tiles = exact || !target.tiles ? nullptr : &target.tiles->attention;
  const KvKernels& floats = target.kernels()[format_number("f32")].kv;
  size_t group = q_heads / heads.kv_heads;
  size_t pad = padded(heads.dim);
  size_t each = std::max<size_t>((tiles ? kMostOnTiles : kMostRows) / group, 1);  // queries a piece

  size_t queries(size_t s) const { return static_cast<size_t>(sequences.q_starts[s + 1] - sequences.q_starts[s]); }
  size_t position(size_t s, size_t query) const {
    return static_cast<size_t>(sequences.lengths[s]) - queries(s) + query;
  }
  const float* row_of_q(const Work& p, size_t row) const {
    const size_t token = static_cast<size_t>(sequences.q_starts[p.sequence]) + p.first + row / group;
    return q + (token * q_heads + p.head * group + row % group) * heads.dim;
  }
  float* row_of_out(const Work& p, size_t row) const { return out + (row_of_q(p, row) - q); }
  float sink(const Work& p, size_t row) const { return logits.sinks[p.head * group + row % group]; }
  const uint8_t* rows_at(const Store& store, size_t s, size_t head, size_t at) const {
    const auto page = static_cast<size_t>(sequences.tables[sequences.table_starts[s] + at / heads.page_tokens]);
    return store.data +
           ((page * heads.kv_heads + head) * heads.page_tokens + at % heads.page_tokens) * store.at.row_bytes;
  }

  // The cut depends on the sequences alone, so that results do not depend on the threads.
  size_t cut(std::vector<Work>& pieces) const {
    size_t partials = 0;
    for (size_t s = 0; s < sequences.count; ++s) {
      for (size_t first = 0; first < queries(s); first += each) {
        const size_t count = std::min(each, queries(s) - first);
        const size_t low = position(s, first), to = position(s, first + count - 1) + 1;
        const size_t from = logits.window && low + 1 > logits.window ? low + 1 - logits.window : 0;
        const size_t parts = (to - 1) / kSplit - from / kSplit + 1;
        for (size_t head = 0; head < heads.kv_heads; ++head) {
          for (size_t part = 0; part < parts; ++part) {
            const size_t begin = part == 0 ? from : (from / kSplit + part) * kSplit;
            const size_t end = std::min(to, (from / kSplit + part + 1) * kSplit);
            pieces.push_back({s, head, first, count, begin, end, parts, partials});
            if (parts > 1) partials += count * group;
          }
        }
      }
    }
    return partials;
  }

  void run(const Work& p, KvState* partials, float* sums) const {
    const size_t rows = p.count * group;
    const bool on_tiles = tiles && rows > kFewRows;
    const Scratch own(rows, pad, on_tiles ? tiles->steps(pad) : 0);
    load_queries(p, rows, own.queries);
    std::fill_n(own.acc, rows * pad, 0.0f);
    for (size_t r = 0; r < rows; ++r) own.state[r] = {kNone, 0};
    if (on_tiles) {
      tiles->pack_queries(own.queries, rows, pad, own.query_tiles);
      auto work = [&] { by_tokens(p, [&](size_t at, size_t tokens) { on_some_tiles(p, rows, at, tokens, own); }); };
      tiles->with_tiles([](void* what) { (*static_cast<decltype(work)*>(what))(); }, &work);
    } else {
      by_tokens(p, [&](size_t at, size_t tokens) { some_tokens(p, rows, at, tokens, own); });
    }
    if (p.parts == 1) {
      for (size_t r = 0; r < rows; ++r) finish(p, r, own.state[r], own.acc + r * pad);
    } else {
      std::copy_n(own.state, rows, partials + p.partial);
      std::copy_n(own.acc, rows * pad, sums + p.partial * pad);
    }
  }
  // Calls f(at, tokens) for tokens that lie in one page.
  template <class Fn>
  void by_tokens(const Work& p, Fn&& f) const {
    for (size_t at = p.from; at < p.to;) {
      const size_t left = std::min(heads.page_tokens - at % heads.page_tokens, p.to - at);
      const size_t tokens = std::min(left, kKvTokens);
      f(at, tokens);
      at += tokens;
    }
  }
  void load_queries(const Work& p, size_t rows, float* to) const {
    for (size_t r = 0; r < rows; ++r, to += pad) {
      const float* from = row_of_q(p, r);
      target.scale(from, heads.dim, logits.scale, to);
      std::fill(to + heads.dim, to + pad, 0.0f);
      if (heads.rotate) rotate(target, to, heads.dim);
    }
  }
  // Where K or V of some tokens are, and of those that come next.
  struct Place {
    const uint8_t* here;
    KvAhead ahead;
  };
  Place place(const Store& store, const Work& p, size_t at, size_t tokens) const {
    const auto rows = [&](size_t token) { return rows_at(store, p.sequence, p.head, std::min(token, p.to - 1)); };
    return {rows(at), {rows(at + tokens), rows(at + 2 * tokens)}};
  }
  void to_floats(const Store& store, const Place& x, size_t tokens, float* tile) const {
    store.kernels->kv.floats(x.here, tokens, store.at.row_bytes, heads.dim, x.ahead, tile, pad);
  }
  void some_tokens(const Work& p, size_t rows, size_t at, size_t tokens, const Scratch& own) const {
    const Place keys = place(k, p, at, tokens), values = place(v, p, at, tokens);
    float* s = own.scores;
    if (rows <= kFewRows) {
      k.kernels->kv.scores(own.queries, rows, pad, keys.here, tokens, k.at.row_bytes, heads.dim, keys.ahead, s);
      weigh(p, rows, at, tokens, own);
      v.kernels->kv.values(s, rows, values.here, tokens, v.at.row_bytes, heads.dim, values.ahead, own.acc, pad);
    } else {
      const auto* bytes = reinterpret_cast<const uint8_t*>(own.tile);
      const size_t row_bytes = pad * sizeof(float);
      to_floats(k, keys, tokens, own.tile);
      floats.scores(own.queries, rows, pad, bytes, tokens, row_bytes, pad, {}, s);
      weigh(p, rows, at, tokens, own);
      to_floats(v, values, tokens, own.tile);
      floats.values(s, rows, bytes, tokens, row_bytes, pad, {}, own.acc, pad);
    }
  }
  void on_some_tiles(const Work& p, size_t rows, size_t at, size_t tokens, const Scratch& own) const {
    to_floats(k, place(k, p, at, tokens), tokens, own.tile);
    tiles->scores(own.query_tiles, rows, own.tile, tokens, pad, own.k_tiles, own.scores);
    weigh(p, rows, at, tokens, own);
    to_floats(v, place(v, p, at, tokens), tokens, own.tile);
    tiles->values(own.scores, rows, own.tile, tokens, pad, own.weights, own.v_tiles, own.acc);
  }
  void weigh(const Work& p, size_t rows, size_t at, size_t tokens, const Scratch& own) const {
    float *s = own.scores, *acc = own.acc;
    if (logits.softcap > 0) {
      for (size_t i = 0; i < rows * kKvTokens; ++i) s[i] = logits.softcap * std::tanh(s[i] / logits.softcap);
    }
    if (at + tokens > position(p.sequence, p.first) || logits.window) hide(p, rows, at, tokens, s);
    target.weigh(s, rows, tokens, own.state, own.factors);
    for (size_t r = 0; r < rows; ++r, acc += pad) {
      if (own.factors[r] != 1) target.scale(acc, pad, own.factors[r], acc);
    }
  }
  // Takes away what a query must not see: later tokens, and those before its window.
  void hide(const Work& p, size_t rows, size_t at, size_t tokens, float* s) const {
    for (size_t r = 0; r < rows; ++r, s += kKvTokens) {
      const size_t own = position(p.sequence, p.first + r / group);
      for (size_t t = own >= at ? own - at + 1 : 0; t < tokens; ++t) s[t] = kNone;
      const size_t first = logits.window && own >= logits.window ? own - logits.window + 1 : 0;
      for (size_t t = 0; t < tokens && at + t < first; ++t) s[t] = kNone;
    }
  }
  // The sink counts as one more weight.
  void finish(const Work& p, size_t row, KvState state, const float* acc) const {
    float by = 1 / state.sum;
    if (logits.sinks) {
      const float top = std::max(state.max, sink(p, row)), factor = std::exp(state.max - top);
      by = factor / (state.sum * factor + std::exp(sink(p, row) - top));
    }
    target.scale(acc, heads.dim, by, row_of_out(p, row));
  }
  // Joins the pieces from `first` on that share their queries.
  void join(const Work* first, const KvState* partials, const float* sums) const {
    const size_t rows = first->count * group;
    float* acc = scratch.get<float>(pad);
    for (size_t r = 0; r < rows; ++r) {
      KvState all{kNone, 0};
      for (size_t i = 0; i < first->parts; ++i) all.max = std::max(all.max, partials[first[i].partial + r].max);
      std::fill_n(acc, pad, 0.0f);
      for (size_t i = 0; i < first->parts; ++i) {
        const KvState& one = partials[first[i].partial + r];
        const float factor = one.max == kNone ? 0 : std::exp(one.max - all.max);
        const float* from = sums + (first[i].partial + r) * pad;
        all.sum += one.sum * factor;
        for (size_t d = 0; d < pad; ++d) acc[d] += from[d] * factor;
      }
      finish(*first, r, all, acc);
    }
  }
};

}  // namespace

size_t kv_row_values(const Kernels& kernels, size_t dim) { return kernels.kv_block == 1 ? dim : padded(dim); }

void kv_write(const Store& to, const Heads& heads, const float* x, const int64_t* slots, size_t tokens, int threads) {
  const Target& target = current_target();
  const size_t values = kv_row_values(*to.kernels, heads.dim);
  parallel_for(tokens * heads.kv_heads, 4096 / (heads.dim + 1) + 1, threads, [&](size_t begin, size_t end) {
    float* row = scratch.get<float>(padded(heads.dim));
    for (size_t i = begin; i < end; ++i) {
      const auto slot = static_cast<size_t>(slots[i / heads.kv_heads]);
      const size_t page = slot / heads.page_tokens, head = i % heads.kv_heads;
      std::copy_n(x + i * heads.dim, heads.dim, row);
      std::fill(row + heads.dim, row + padded(heads.dim), 0.0f);
      if (heads.rotate) rotate(target, row, heads.dim);
      uint8_t* out =
          to.data + ((page * heads.kv_heads + head) * heads.page_tokens + slot % heads.page_tokens) * to.at.row_bytes;
      to.kernels->encode(row, values, nullptr, to.at, out);
    }
  });
}

void attend(const Store& k, const Store& v, const Heads& heads, const Sequences& sequences, const Logits& logits,
            const float* q, size_t q_heads, float* out, bool exact, int threads) {
  const Call call{k, v, heads, sequences, logits, q, q_heads, out, exact};
  thread_local std::vector<Work> pieces;  // kept, so that nothing is allocated again
  pieces.clear();
  const size_t rows = call.cut(pieces);
  const std::vector<Work>& all = pieces;
  auto* partials = partial_results.get<KvState>(rows + (rows * call.pad * sizeof(float)) / sizeof(KvState) + 1);
  float* sums = reinterpret_cast<float*>(partials + rows);
  parallel_for(all.size(), 1, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) call.run(all[i], partials, sums);
  });
  if (rows == 0) return;
  parallel_for(all.size(), 64, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const bool first = i == 0 || all[i - 1].head != all[i].head || all[i - 1].first != all[i].first ||
                         all[i - 1].sequence != all[i].sequence;
      if (first && all[i].parts > 1) call.join(&all[i], partials, sums);
    }
  });
}

}  // namespace fewbit
