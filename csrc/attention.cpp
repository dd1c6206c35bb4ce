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
constexpr size_t kFewRows = 8;                                // up to so many, K and V are decoded where they are used
constexpr size_t kLeastCodeRows = 3, kLeastCodeTokens = 128;  // that are worth int8 tiles

thread_local Workspace scratch;          // of whoever does a piece
thread_local Workspace code_scratch;     // the same, with int8 tiles
thread_local Workspace partial_results;  // of the caller

size_t padded(size_t dim) { return (dim + 31) / 32 * 32; }

void rotate(const Target& target, float* x, size_t dim) {
  const size_t size = dim & -dim;  // the largest power of two that divides it
  for (size_t i = 0; i < dim; i += size) target.rotate(x + i, size);
}

// Packs what a head keeps of a token.
void write_row(const Store& to, const Heads& heads, bool rotates, const float* x, size_t slot, size_t head) {
  const Target& target = current_target();
  const size_t page = slot / heads.page_tokens, place = slot % heads.page_tokens;
  float* row = scratch.get<float>(padded(heads.dim));
  std::copy_n(x, heads.dim, row);
  std::fill(row + heads.dim, row + padded(heads.dim), 0.0f);
  if (rotates) rotate(target, row, heads.dim);
  uint8_t* out = to.data + ((page * heads.kv_heads + head) * heads.page_tokens + place) * to.at.row_bytes;
  to.kernels->encode(row, kv_row_values(*to.kernels, heads.dim), nullptr, to.at, out);
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
  const Fresh* fresh;
  float* out;
  bool exact;
  const Target& target = current_target();
  const TileAttention* tiles = exact || !target.tiles ? nullptr : &target.tiles->attention;
  const CodeAttention* codes = uses_codes() ? &target.tiles->codes : nullptr;
  const KvKernels& floats = target.kernels()[format_number("f32")].kv;
  size_t group = q_heads / heads.kv_heads;
  size_t pad = padded(heads.dim);
  size_t each = std::max<size_t>((tiles ? kMostOnTiles : kMostRows) / group, 1);  // queries a piece

  bool uses_codes() const {
    const bool known = k.kernels->kv.key_codes && v.kernels->kv.value_codes;
    return target.tiles && known && heads.dim <= 32 * kMostCodeBlocks && heads.page_tokens >= kKvTokens;
  }
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
  // The number of the row of a store that keeps a token.
  size_t row_of(const Work& p, size_t token) const {
    const size_t page_tokens = heads.page_tokens, index = token / page_tokens;
    const auto page = static_cast<size_t>(sequences.tables[sequences.table_starts[p.sequence] + index]);
    return (page * heads.kv_heads + p.head) * page_tokens + (token - index * page_tokens);
  }

  // Several new tokens of a sequence see each other, so all are packed first. A single one is packed by whoever comes
  // to it: no other piece of work looks at it.
  void write_prompts(int threads) const {
    Heads plain = heads;
    plain.rotate = false;
    for (size_t s = 0; fresh && s < sequences.count; ++s) {
      if (queries(s) == 1) continue;
      const auto first = static_cast<size_t>(sequences.q_starts[s]), at = first * heads.kv_heads * heads.dim;
      kv_write(k, heads, fresh->k + at, fresh->slots + first, queries(s), threads);
      kv_write(v, plain, fresh->v + at, fresh->slots + first, queries(s), threads);
    }
  }
  void write_own(const Work& p) const {
    if (!fresh || queries(p.sequence) != 1 || p.to != static_cast<size_t>(sequences.lengths[p.sequence])) return;
    const auto token = static_cast<size_t>(sequences.q_starts[p.sequence]);
    const auto slot = static_cast<size_t>(fresh->slots[token]);
    const size_t at = (token * heads.kv_heads + p.head) * heads.dim;
    write_row(k, heads, heads.rotate, fresh->k + at, slot, p.head);
    write_row(v, heads, false, fresh->v + at, slot, p.head);
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
    write_own(p);
    const size_t rows = p.count * group;
    const bool on_tiles = tiles && rows > kFewRows;
    const bool by_codes = codes && rows >= kLeastCodeRows && rows <= kMostCodeRows && p.to - p.from >= kLeastCodeTokens;
    const Scratch own(rows, pad, on_tiles ? tiles->steps(pad) : 0);
    load_queries(p, rows, own.queries);
    std::fill_n(own.acc, rows * pad, 0.0f);
    for (size_t r = 0; r < rows; ++r) own.state[r] = {kNone, 0};
    if (on_tiles) {
      tiles->pack_queries(own.queries, rows, pad, own.query_tiles);
      auto work = [&] { by_blocks(p, [&](const Block& b) { on_some_tiles(p, rows, b, own); }); };
      tiles->with_tiles([](void* what) { (*static_cast<decltype(work)*>(what))(); }, &work);
    } else if (by_codes) {
      auto work = [&] { on_code_tiles(p, rows, own); };
      codes->with_tiles([](void* what) { (*static_cast<decltype(work)*>(what))(); }, &work);
    } else {
      by_blocks(p, [&](const Block& b) { some_tokens(p, rows, b, own); });
    }
    if (p.parts == 1) {
      for (size_t r = 0; r < rows; ++r) finish(p, r, own.state[r], own.acc + r * pad);
    } else {
      std::copy_n(own.state, rows, partials + p.partial);
      std::copy_n(own.acc, rows * pad, sums + p.partial * pad);
    }
  }
  // Some tokens that lie in one page, and the rows of those that come next and after them.
  struct Block {
    size_t at, tokens, row, next, later;
  };
  size_t tokens_from(const Work& p, size_t at) const {  // that lie in one page
    return std::min({heads.page_tokens - at % heads.page_tokens, p.to - at, kKvTokens});
  }
  template <class Fn>
  void by_blocks(const Work& p, Fn&& f) const {
    const auto after = [&](size_t at) { return at < p.to ? at + tokens_from(p, at) : at; };
    const auto row = [&](size_t at) { return row_of(p, std::min(at, p.to - 1)); };
    for (size_t at = p.from, next = after(at), here = row(at), soon = row(next); at < p.to;) {
      const size_t later = after(next), last = row(later);
      f(Block{at, next - at, here, soon, last});
      at = next, next = later, here = soon, soon = last;
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
  static const uint8_t* at(const Store& store, size_t row) { return store.data + row * store.at.row_bytes; }
  static KvAhead ahead(const Store& store, const Block& b) { return {at(store, b.next), at(store, b.later)}; }
  void to_floats(const Store& store, const Block& b, float* tile) const {
    store.kernels->kv.floats(at(store, b.row), b.tokens, store.at.row_bytes, heads.dim, ahead(store, b), tile, pad);
  }
  void some_tokens(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    float* s = own.scores;
    if (rows <= kFewRows) {
      k.kernels->kv.scores(own.queries, rows, pad, at(k, b.row), b.tokens, k.at.row_bytes, heads.dim, ahead(k, b), s);
      weigh(p, rows, b, own);
      v.kernels->kv.values(s, rows, at(v, b.row), b.tokens, v.at.row_bytes, heads.dim, ahead(v, b), own.acc, pad);
    } else {
      const auto* bytes = reinterpret_cast<const uint8_t*>(own.tile);
      const size_t row_bytes = pad * sizeof(float);
      to_floats(k, b, own.tile);
      floats.scores(own.queries, rows, pad, bytes, b.tokens, row_bytes, pad, {}, s);
      weigh(p, rows, b, own);
      to_floats(v, b, own.tile);
      floats.values(s, rows, bytes, b.tokens, row_bytes, pad, {}, own.acc, pad);
    }
  }
  void on_some_tiles(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    to_floats(k, b, own.tile);
    tiles->scores(own.query_tiles, rows, own.tile, b.tokens, pad, own.k_tiles, own.scores);
    weigh(p, rows, b, own);
    to_floats(v, b, own.tile);
    tiles->values(own.scores, rows, own.tile, b.tokens, pad, own.weights, own.v_tiles, own.acc);
  }
  // The keys of a block beside the values of the one before it: while one waits for tiles the other has work to do.
  void on_code_tiles(const Work& p, size_t rows, const Scratch& own) const {
    auto& c = *code_scratch.get<CodeScratch>(1);
    const size_t blocks = pad / 32;
    Block before{};
    codes->pack_queries(own.queries, rows, pad, c);
    const auto both = [&](const Block* b) {
      if (b) {
        c.keys_ahead = {at(k, b->later), b->tokens * k.at.row_bytes};
        c.values_ahead = {at(v, b->next), b->tokens * v.at.row_bytes};
        k.kernels->kv.key_codes(at(k, b->row), b->tokens, k.at.row_bytes, heads.dim, c);
      }
      if (before.tokens) {
        v.kernels->kv.value_codes(at(v, before.row), before.tokens, v.at.row_bytes, heads.dim, c);
        codes->pack_weights(own.scores, rows, before.tokens, blocks, c);
      }
      if (b) codes->multiply_keys(rows, b->tokens, blocks, c);
      if (before.tokens) codes->multiply_values(rows, blocks, c);
      if (b) codes->scores(rows, b->tokens, blocks, c, own.scores);
      if (before.tokens) codes->add_values(rows, blocks, c, own.acc, pad);
      if (b) weigh(p, rows, *b, own);
    };
    by_blocks(p, [&](const Block& b) {
      both(&b);
      before = b;
    });
    both(nullptr);
  }
  void weigh(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    float *s = own.scores, *acc = own.acc;
    if (logits.softcap > 0) {
      for (size_t i = 0; i < rows * kKvTokens; ++i) s[i] = logits.softcap * std::tanh(s[i] / logits.softcap);
    }
    if (b.at + b.tokens > position(p.sequence, p.first) || logits.window) hide(p, rows, b, s);
    for (size_t r = 0; r < rows; r += kFewRows) {
      target.weigh(s + r * kKvTokens, std::min(kFewRows, rows - r), b.tokens, own.state + r, own.factors + r);
      if (tiles && rows > kFewRows) tiles->keep_awake();
    }
    for (size_t r = 0; r < rows; ++r, acc += pad) {
      if (own.factors[r] != 1) target.scale(acc, pad, own.factors[r], acc);
    }
  }
  // Takes away what a query must not see: later tokens, and those before its window.
  void hide(const Work& p, size_t rows, const Block& b, float* s) const {
    for (size_t r = 0; r < rows; ++r, s += kKvTokens) {
      const size_t own = position(p.sequence, p.first + r / group);
      for (size_t t = own >= b.at ? own - b.at + 1 : 0; t < b.tokens; ++t) s[t] = kNone;
      const size_t first = logits.window && own >= logits.window ? own - logits.window + 1 : 0;
      for (size_t t = 0; t < b.tokens && b.at + t < first; ++t) s[t] = kNone;
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
  parallel_for(tokens * heads.kv_heads, 4096 / (heads.dim + 1) + 1, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto slot = static_cast<size_t>(slots[i / heads.kv_heads]);
      write_row(to, heads, heads.rotate, x + i * heads.dim, slot, i % heads.kv_heads);
    }
  });
}

void attend(const Store& k, const Store& v, const Heads& heads, const Sequences& sequences, const Logits& logits,
            const float* q, size_t q_heads, const Fresh* fresh, float* out, bool exact, int threads) {
  const Call call{k, v, heads, sequences, logits, q, q_heads, fresh, out, exact};
  call.write_prompts(threads);
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
