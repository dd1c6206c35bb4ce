#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kSplit = 2048;   // tokens of the context that one piece of work reads
constexpr size_t kMostRows = 64;  // queries times heads that share K and V, in one piece
constexpr size_t kMostMatrixRows = 128;
constexpr size_t kFewTokens = 4;  // of a slab, that are read as floats
constexpr size_t kPieces = 8;     // for each thread, before one takes several heads
constexpr size_t kShort = 4096;   // tokens times heads: a piece for each thread is enough

thread_local Workspace scratch;  // of whoever does a piece
thread_local Workspace packed_queries;
thread_local Workspace key_rows, value_rows;  // that lay as tiles
thread_local Workspace partial_results;       // of the caller

size_t padded(size_t dim) { return (dim + 31) / 32 * 32; }

void rotate(const Target& target, const float* x, size_t dim, float by, float* out) {
  const size_t size = dim & -dim;  // the largest power of two that divides it
  for (size_t i = 0; i < dim; i += size) target.rotate(x + i, size, by, out + i);
}

// Packs what a head keeps of a token.
void write_row(const Store& to, const Heads& heads, bool rotates, const float* x, size_t slot, size_t head) {
  const Target& target = current_target();
  const size_t page = slot / heads.page_tokens, place = slot % heads.page_tokens;
  float* row = scratch.get<float>(padded(heads.dim) + to.at.row_bytes);  // and the same, packed
  if (rotates || heads.dim % 32 != 0) {
    if (rotates)
      rotate(target, x, heads.dim, 1, row);
    else
      std::copy_n(x, heads.dim, row);
    std::fill(row + heads.dim, row + padded(heads.dim), 0.0f);
    x = row;
  }
  const size_t number = (page * heads.kv_heads + head) * heads.page_tokens + place;
  const size_t values = kv_row_values(*to.kernels, heads.dim);
  if (!to.tiled()) return to.kernels->encode(x, values, nullptr, to.at, to.data + number * to.at.row_bytes);
  const KvKernels& kv = to.kernels->kv;
  const bool is_value = to.order == Order::value_tiles;
  const size_t token = number % kKvTokens;
  uint8_t* slab = to.data + (number - token) * to.at.row_bytes;
  if (kv.quick_to_tiled && kv.quick_to_tiled(x, token, heads.dim, is_value, slab)) return;
  auto* packed = reinterpret_cast<uint8_t*>(row + padded(heads.dim));
  to.kernels->encode(x, values, nullptr, to.at, packed);
  kv.to_tiled(packed, token, heads.dim, is_value, slab);
}

// Memory for one piece of work.
struct Scratch {
  float *queries, *acc, *scores, *tile;
  KvState* state;
  float* factors;
  void* matrix;  // for matrix units only

  Scratch(size_t rows, size_t pad, size_t matrix_bytes) {
    const size_t some = (rows + kMatrixRows - 1) / kMatrixRows * kMatrixRows;
    const size_t floats = 2 * some * pad + some * kKvTokens + kKvTokens * pad + 3 * some;
    queries = scratch.get<float>(floats + matrix_bytes / sizeof(float));
    acc = queries + some * pad;
    scores = acc + some * pad;
    tile = scores + some * kKvTokens;
    state = reinterpret_cast<KvState*>(tile + kKvTokens * pad);
    factors = reinterpret_cast<float*>(state + some);
    matrix = factors + some;
  }
  // What belongs to one of the heads, of `rows` queries each; the rest serves one after the other.
  Scratch of(size_t head, size_t rows, size_t pad) const {
    Scratch one = *this;
    one.queries += head * rows * pad;
    one.acc += head * rows * pad;
    one.state += head * rows;
    one.factors += head * rows;
    return one;
  }
};

// Some queries of a sequence, some KV heads, a part of the context. Pages are read as they lie, head by head: that is
// faster than to come back for each.
struct Work {
  size_t sequence;
  size_t head, heads;     // the first, and how many
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
  const MatrixAttention* matrix = exact ? nullptr : target.matrix_attention;
  const IntegerAttention* integers = takes_integers() ? target.integer_attention : nullptr;
  bool tiled = k.tiled();
  const KvKernels& floats = target.kernels()[format_number("f32")].kv;
  size_t group = q_heads / heads.kv_heads;
  size_t pad = padded(heads.dim);
  size_t each = std::max<size_t>((matrix ? kMostMatrixRows : kMostRows) / group, 1);  // queries a piece, of one head

  bool takes_integers() const {
    const IntegerAttention* can = target.integer_attention;
    if (!can || (exact && !can->is_exact)) return false;
    const KvKernels &keys = k.kernels->kv, &values = v.kernels->kv;
    if (!keys.integer_keys || !values.integer_values) return false;
    const bool reads = !k.tiled() || (keys.prefers_tiled && values.prefers_tiled);
    return reads && heads.dim <= can->most_dim && heads.page_tokens >= can->least_page_tokens;
  }
  size_t queries(size_t s) const { return static_cast<size_t>(sequences.q_starts[s + 1] - sequences.q_starts[s]); }
  size_t position(size_t s, size_t query) const {
    return static_cast<size_t>(sequences.lengths[s]) - queries(s) + query;
  }
  // Rows of a piece: the queries of its first head, then those of the next.
  size_t rows_of_head(const Work& p) const { return p.count * group; }
  template <class Fn>
  void by_rows(const Work& p, Fn&& f) const {  // f(row, head of queries, where its values lie in q and out)
    const size_t token = static_cast<size_t>(sequences.q_starts[p.sequence]) + p.first;
    size_t row = 0;
    for (size_t head = p.head; head < p.head + p.heads; ++head) {
      for (size_t query = 0; query < p.count; ++query) {
        for (size_t i = head * group; i < (head + 1) * group; ++i, ++row) {
          f(row, i, ((token + query) * q_heads + i) * heads.dim);
        }
      }
    }
  }
  // The number of the row of a store that keeps a token of a head.
  size_t row_of(const Work& p, size_t token, size_t head) const {
    const size_t page_tokens = heads.page_tokens, index = token / page_tokens;
    const auto page = static_cast<size_t>(sequences.tables[sequences.table_starts[p.sequence] + index]);
    return (page * heads.kv_heads + head) * page_tokens + (token - index * page_tokens);
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
    for (size_t head = p.head; head < p.head + p.heads; ++head) {
      const size_t at = (token * heads.kv_heads + head) * heads.dim;
      write_row(k, heads, heads.rotate, fresh->k + at, slot, head);
      write_row(v, heads, false, fresh->v + at, slot, head);
    }
  }

  // What part of the context queries from `first` on see, and how many pieces share it. That depends on the sequence
  // alone, so that results do not depend on the threads.
  struct Part {
    size_t from, to, parts;
  };
  Part part(size_t s, size_t first, size_t count) const {
    const size_t low = position(s, first), to = position(s, first + count - 1) + 1;
    size_t from = logits.window && low + 1 > logits.window ? low + 1 - logits.window : 0;
    if (tiled) from = from / kKvTokens * kKvTokens;  // what is too much is hidden
    return {from, to, (to - 1) / kSplit - from / kSplit + 1};
  }
  template <class Fn>
  void by_queries(Fn&& f) const {
    for (size_t s = 0; s < sequences.count; ++s) {
      for (size_t first = 0; first < queries(s); first += each) f(s, first, std::min(each, queries(s) - first));
    }
  }
  // Pieces of work for one head, and what they read.
  struct Amount {
    size_t parts, tokens;
  };
  Amount amount() const {
    Amount out{};
    by_queries([&](size_t s, size_t first, size_t count) {
      const Part one = part(s, first, count);
      out.parts += one.parts;
      out.tokens += one.to - one.from;
    });
    return out;
  }
  // Heads of one piece: more than one if there are enough pieces for all threads, and few queries.
  size_t heads_together(size_t count, const Amount& all, int threads) const {
    const size_t rows = count * group;
    if (rows > kSkinnyQueries) return 1;
    const size_t most = std::min(heads.kv_heads, kMostRows / rows);
    const size_t each = all.tokens * heads.kv_heads <= kShort ? 1 : kPieces;
    return std::clamp<size_t>(all.parts * heads.kv_heads / (each * static_cast<size_t>(std::max(threads, 1))), 1, most);
  }
  size_t cut(std::vector<Work>& pieces, int threads) const {
    const Amount whole = amount();
    size_t partials = 0;
    by_queries([&](size_t s, size_t first, size_t count) {
      const Part all = part(s, first, count);
      const size_t together = heads_together(count, whole, threads);
      for (size_t head = 0; head < heads.kv_heads; head += together) {
        const size_t some = std::min(together, heads.kv_heads - head);
        for (size_t i = 0; i < all.parts; ++i) {
          const size_t begin = i == 0 ? all.from : (all.from / kSplit + i) * kSplit;
          const size_t end = std::min(all.to, (all.from / kSplit + i + 1) * kSplit);
          pieces.push_back({s, head, some, first, count, begin, end, all.parts, partials});
          if (all.parts > 1) partials += some * count * group;
        }
      }
    });
    return partials;
  }

  void run(const Work& p, KvState* partials, float* sums) const {
    write_own(p);
    const size_t rows = rows_of_head(p), all = p.heads * rows;
    const bool on_matrix = matrix && rows > kSkinnyQueries;
    const Scratch own(all, pad, on_matrix ? matrix->scratch_bytes(rows, pad) : 0);
    load_queries(p, own.queries);
    std::fill_n(own.acc, all * pad, 0.0f);
    for (size_t r = 0; r < all; ++r) own.state[r] = {kNone, 0};
    if (on_matrix) {
      matrix->pack_queries(own.queries, rows, pad, own.matrix);
      with(matrix->with_units, [&] { by_blocks(p, [&](const Block& b) { on_matrix_units(p, rows, b, own); }); });
    } else if (worth_integers(p, rows)) {
      with(integers->with_units, [&] { over_integers(p, rows, own); });
    } else {
      by_blocks(p, [&](const Block& b) { some_tokens(p, rows, b, own.of(b.head, rows, pad)); });
    }
    if (p.parts == 1) {
      by_rows(p, [&](size_t r, size_t head, size_t at) { finish(own.state[r], head, own.acc + r * pad, out + at); });
    } else {
      std::copy_n(own.state, all, partials + p.partial);
      std::copy_n(own.acc, all * pad, sums + p.partial * pad);
    }
  }
  bool worth_integers(const Work& p, size_t rows) const {
    if (!integers || rows > kSkinnyQueries) return false;
    return tiled || (rows >= integers->least_rows && p.to - p.from >= integers->least_tokens);
  }
  template <class Fn>
  static void with(WithUnits units, Fn&& work) {
    units([](void* what) { (*static_cast<std::remove_reference_t<Fn>*>(what))(); }, &work);
  }
  // Some tokens of a head of the piece that lie in one page, and the rows of those that come next and after them.
  struct Block {
    size_t head, at, tokens, row, next, later;
  };
  size_t tokens_from(const Work& p, size_t at) const {  // that lie in one page
    return std::min({heads.page_tokens - at % heads.page_tokens, p.to - at, kKvTokens});
  }
  template <class Fn>
  void by_blocks(const Work& p, Fn&& f) const {
    struct Place {
      size_t at, head, tokens, row;
    };
    const auto first_head = [&](size_t at) { return Place{at, 0, tokens_from(p, at), row_of(p, at, p.head)}; };
    const auto after = [&](const Place& x) {  // the last comes after itself
      if (x.head + 1 < p.heads) return Place{x.at, x.head + 1, x.tokens, x.row + heads.page_tokens};
      return x.at + x.tokens < p.to ? first_head(x.at + x.tokens) : x;
    };
    Place here = first_head(p.from), next = after(here);
    for (bool last = false; !last;) {
      const Place later = after(next);
      last = next.at == here.at && next.head == here.head;
      f(Block{here.head, here.at, here.tokens, here.row, next.row, later.row});
      here = next, next = later;
    }
  }
  void load_queries(const Work& p, float* to) const {
    by_rows(p, [&](size_t, size_t, size_t at) {
      if (heads.rotate)
        rotate(target, q + at, heads.dim, logits.scale, to);
      else
        target.scale(q + at, heads.dim, logits.scale, to);
      std::fill(to + heads.dim, to + pad, 0.0f);
      to += pad;
    });
  }
  static const uint8_t* at(const Store& store, size_t row) { return store.data + row * store.at.row_bytes; }
  // Half of the keys and values of a later block are prefetched with the keys of this one, and half with its values.
  KvPrefetch to_prefetch(const Store& store, const Block& b) const {
    const bool second = &store == &v;
    const auto half = [&](const Store& x) { return at(x, b.later) + second * (b.tokens * x.at.row_bytes / 2); };
    return {at(store, b.next), {half(k), half(v)}};
  }
  // The rows of a block, wherever they lie.
  const uint8_t* rows_of(const Store& store, const Block& b) const {
    if (!tiled) return at(store, b.row);
    auto* rows = (&store == &v ? value_rows : key_rows).get<uint8_t>(kKvTokens * store.at.row_bytes);
    for (size_t t = 0; t < b.tokens; ++t) {
      store.kernels->kv.from_tiled(at(store, b.row), t, heads.dim, &store == &v, rows + t * store.at.row_bytes);
    }
    return rows;
  }
  void to_floats(const Store& store, const Block& b, float* tile) const {
    const KvKernels& kv = store.kernels->kv;
    if (tiled && kv.tiled_floats) {
      kv.tiled_floats(at(store, b.row), b.tokens, heads.dim, &store == &v, tile, pad);
    } else {
      const uint8_t* rows = rows_of(store, b);
      kv.floats(rows, b.tokens, store.at.row_bytes, heads.dim, to_prefetch(store, b), tile, pad);
    }
  }
  void some_tokens(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    float* s = own.scores;
    if (rows <= kSkinnyQueries) {
      const uint8_t *keys = rows_of(k, b), *values = rows_of(v, b);
      k.kernels->kv.scores(own.queries, rows, pad, keys, b.tokens, k.at.row_bytes, heads.dim, to_prefetch(k, b), s);
      weigh(p, rows, b, own);
      v.kernels->kv.values(s, rows, values, b.tokens, v.at.row_bytes, heads.dim, to_prefetch(v, b), own.acc, pad);
    } else {
      by_floats(p, rows, b, own);
    }
  }
  void by_floats(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(own.tile);
    const size_t row_bytes = pad * sizeof(float);
    to_floats(k, b, own.tile);
    floats.scores(own.queries, rows, pad, bytes, b.tokens, row_bytes, pad, {}, own.scores);
    weigh(p, rows, b, own);
    to_floats(v, b, own.tile);
    floats.values(own.scores, rows, bytes, b.tokens, row_bytes, pad, {}, own.acc, pad);
  }
  void on_matrix_units(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    to_floats(k, b, own.tile);
    matrix->scores(own.tile, rows, b.tokens, pad, own.matrix, own.scores);
    weigh(p, rows, b, own);
    to_floats(v, b, own.tile);
    matrix->values(own.scores, rows, own.tile, b.tokens, pad, own.matrix, own.acc);
  }
  KvBlockRows block_rows(const Store& store, const Block& b) const {
    return {at(store, b.row), b.tokens, store.at.row_bytes, tiled, at(store, b.next), at(store, b.later)};
  }
  // The keys of a block beside the values of the one before it.
  void over_integers(const Work& p, size_t rows, const Scratch& own) const {
    const size_t bytes = integers->query_bytes(pad);
    auto* packed = packed_queries.get<uint8_t>(p.heads * bytes);
    const KvKernels &keys = k.kernels->kv, &values = v.kernels->kv;
    for (size_t h = 0; h < p.heads; ++h) keys.pack_queries(own.of(h, rows, pad).queries, rows, pad, packed + h * bytes);
    Block before{};
    const auto step = [&](const Block& b) {
      if (b.tokens) before.later = b.next;
      integers->step({&keys, &values, block_rows(k, b), block_rows(v, before), packed + b.head * bytes, rows, heads.dim,
                      pad, own.scores, own.of(before.head, rows, pad).acc});
      if (b.tokens) weigh(p, rows, b, own.of(b.head, rows, pad));
      before = b;
    };
    by_blocks(p, [&](const Block& b) {
      const bool few = tiled && b.tokens <= kFewTokens;
      step(few ? Block{} : b);
      if (few) by_floats(p, rows, b, own.of(b.head, rows, pad));
    });
    step(Block{});
  }
  void weigh(const Work& p, size_t rows, const Block& b, const Scratch& own) const {
    float *s = own.scores, *acc = own.acc;
    if (logits.softcap > 0) {
      for (size_t i = 0; i < rows * kKvTokens; ++i) s[i] = logits.softcap * std::tanh(s[i] / logits.softcap);
    }
    if (b.at + b.tokens > position(p.sequence, p.first) + 1 || logits.window) hide(p, rows, b, s);
    for (size_t r = 0; r < rows; r += kSkinnyQueries) {
      target.weigh(s + r * kKvTokens, std::min(kSkinnyQueries, rows - r), b.tokens, own.state + r, own.factors + r);
      if (matrix && rows > kSkinnyQueries) matrix->between();
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
  void finish(KvState state, size_t head, const float* acc, float* to) const {
    float by = 1 / state.sum;
    if (logits.sinks) {
      const float sink = logits.sinks[head], top = std::max(state.max, sink);
      const float factor = std::exp(state.max - top);
      by = factor / (state.sum * factor + std::exp(sink - top));
    }
    target.scale(acc, heads.dim, by, to);
  }
  // Joins the pieces from `first` on that share their queries.
  void join(const Work* first, const KvState* partials, const float* sums) const {
    float* acc = scratch.get<float>(pad);
    by_rows(*first, [&](size_t r, size_t head, size_t at) {
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
      finish(all, head, acc, out + at);
    });
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
  const size_t rows = call.cut(pieces, threads);
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
