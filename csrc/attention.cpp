// Attention over pages: how the work is cut, and the kernels that each piece takes.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention_work.h"
#include "kv_rows.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kFewTokens = 4;  // of a slab, that are read as floats

thread_local ThreadWorkspace scratch;  // of whoever does a piece
thread_local ThreadWorkspace packed_queries;
thread_local ThreadWorkspace key_rows, value_rows;  // that lay as tiles
thread_local ThreadWorkspace partial_results;       // of the caller

// Memory for one piece of work.
struct Scratch {
  float *queries, *acc, *scores, *tile;
  KvState* state;
  float* factors;
  char *key_units, *value_units;  // for matrix units only
  size_t k_pad, v_pad;

  Scratch(size_t rows, size_t k_pad, size_t v_pad, const MatrixAttention* matrix) : k_pad(k_pad), v_pad(v_pad) {
    const size_t some = (rows + kMatrixRows - 1) / kMatrixRows * kMatrixRows;
    const size_t key_bytes = matrix ? matrix->scratch_bytes(rows, k_pad) : 0;
    const size_t value_bytes = matrix && v_pad != k_pad ? matrix->scratch_bytes(rows, v_pad) : 0;
    const size_t tile_floats = kKvTokens * std::max(k_pad, v_pad);
    const size_t floats = some * (k_pad + v_pad) + some * kKvTokens + tile_floats + 3 * some;
    queries = scratch.get<float>(floats + (key_bytes + value_bytes) / sizeof(float));
    acc = queries + some * k_pad;
    scores = acc + some * v_pad;
    tile = scores + some * kKvTokens;
    state = reinterpret_cast<KvState*>(tile + tile_floats);
    factors = reinterpret_cast<float*>(state + some);
    key_units = reinterpret_cast<char*>(factors + some);
    value_units = v_pad == k_pad ? key_units : key_units + key_bytes;
  }
  // What belongs to one of the heads, of `rows` queries each; the rest serves one after the other.
  Scratch of(size_t head, size_t rows) const {
    Scratch one = *this;
    one.queries += head * rows * k_pad;
    one.acc += head * rows * v_pad;
    one.state += head * rows;
    one.factors += head * rows;
    return one;
  }
};

struct Call {
  const Store &k, &v;
  const Heads& heads;
  const Sequences& sequences;
  const PageTables& tables;
  const Logits& logits;
  const float* q;
  size_t q_heads;
  const Fresh* fresh;
  float* out;
  bool exact, alone;
  const Target& target = current_target();
  const MatrixAttention* matrix = exact ? target.kv.exact_matrix : target.kv.matrix;
  const IntegerAttention* integers = takes_integers() ? target.kv.integers : nullptr;
  bool tiled = k.tiled();
  const KvKernels& floats = target.kernels()[format_number("f32")].kv;
  size_t group = q_heads / heads.kv_heads;
  size_t k_pad = k.pad(), v_pad = v.pad();
  Cut pieces{sequences, heads.kv_heads,
             group,     alone ? 1 : std::max<size_t>((matrix ? matrix->most_rows : kMaxPieceRows) / group, 1),
             logits,    tiled};

  bool takes_integers() const {
    const IntegerAttention* can = target.kv.integers;
    if (!can || (exact && !can->is_exact)) return false;
    const KvKernels &keys = k.kernels->kv, &values = v.kernels->kv;
    if (!keys.integer_keys || !values.integer_values) return false;
    const bool reads = keys.prefers_tiled == k.tiled() && values.prefers_tiled == v.tiled();
    return reads && std::max(k.dim, v.dim) <= can->most_dim && heads.page_tokens >= can->least_page_tokens;
  }
  // Rows of a piece: the queries of its first head, then those of the next.
  size_t rows_of_head(const WorkItem& p) const { return p.count * group; }
  template <class Fn>
  void by_rows(const WorkItem& p, Fn&& f) const {  // f(row, head of queries, row of q and out)
    const size_t token = static_cast<size_t>(sequences.q_starts[p.sequence]) + p.first;
    size_t row = 0;
    for (size_t head = p.head; head < p.head + p.heads; ++head) {
      for (size_t query = 0; query < p.count; ++query) {
        for (size_t i = head * group; i < (head + 1) * group; ++i, ++row) {
          f(row, i, (token + query) * q_heads + i);
        }
      }
    }
  }
  // The number of the row of a store that keeps a token of a head.
  size_t row_of(const WorkItem& p, size_t token, size_t head) const {
    const size_t page_tokens = heads.page_tokens, index = token / page_tokens;
    const auto page = static_cast<size_t>(tables.pages[tables.starts[p.sequence] + index]);
    return (page * heads.kv_heads + head) * page_tokens + (token - index * page_tokens);
  }

  // Several new tokens of a sequence see each other, so all are packed first. A single one is packed by whoever comes
  // to it: no other piece of work looks at it.
  void write_prompts(int threads) const {
    Heads plain = heads;
    plain.rotate = false;
    for (size_t s = 0; fresh && s < sequences.count; ++s) {
      const size_t count = pieces.queries(s);
      if (count == 1) continue;
      const auto first = static_cast<size_t>(sequences.q_starts[s]), row = first * heads.kv_heads;
      kv_write(k, heads, fresh->k + row * k.dim, fresh->slots + first, count, threads);
      kv_write(v, plain, fresh->v + row * v.dim, fresh->slots + first, count, threads);
    }
  }
  void write_own(const WorkItem& p) const {
    if (!fresh || pieces.queries(p.sequence) != 1) return;
    if (p.to != static_cast<size_t>(sequences.lengths[p.sequence])) return;
    const auto token = static_cast<size_t>(sequences.q_starts[p.sequence]);
    const auto slot = static_cast<size_t>(fresh->slots[token]);
    for (size_t head = p.head; head < p.head + p.heads; ++head) {
      const size_t row = token * heads.kv_heads + head;
      write_row(k, heads, heads.rotate, fresh->k + row * k.dim, slot, head);
      write_row(v, heads, false, fresh->v + row * v.dim, slot, head);
    }
  }

  void run(const WorkItem& p, KvState* partials, float* sums) const {
    write_own(p);
    const size_t rows = rows_of_head(p), all = p.heads * rows;
    const bool on_matrix = matrix && rows > kSkinnyQueries;
    const Scratch own(all, k_pad, v_pad, on_matrix ? matrix : nullptr);
    load_queries(p, own.queries);
    std::fill_n(own.acc, all * v_pad, 0.0f);
    for (size_t r = 0; r < all; ++r) own.state[r] = {kNone, 0};
    if (on_matrix) {
      matrix->pack_queries(own.queries, rows, k_pad, own.key_units);
      with(matrix->with_units, [&] { by_blocks(p, [&](const Block& b) { on_matrix_units(p, rows, b, own); }); });
    } else if (integers && rows <= kSkinnyQueries) {
      with(integers->with_units, [&] { over_integers(p, rows, own); });
    } else {
      by_blocks(p, [&](const Block& b) { some_tokens(p, rows, b, own.of(b.head, rows)); });
    }
    if (p.parts == 1) {
      by_rows(p, [&](size_t r, size_t head, size_t row) {
        finish(own.state[r], head, own.acc + r * v_pad, out + row * v.dim);
      });
    } else {
      std::copy_n(own.state, all, partials + p.partial);
      std::copy_n(own.acc, all * v_pad, sums + p.partial * v_pad);
    }
  }
  template <class Fn>
  static void with(WithUnits units, Fn&& work) {
    units([](void* what) { (*static_cast<std::remove_reference_t<Fn>*>(what))(); }, &work);
  }
  // Some tokens of a head of the piece that lie in one page, and the rows of those that come next and after them.
  struct Block {
    size_t head, at, tokens, row, next, later;
  };
  size_t tokens_from(const WorkItem& p, size_t at) const {  // that lie in one page
    return std::min({heads.page_tokens - at % heads.page_tokens, p.to - at, kKvTokens});
  }
  template <class Fn>
  void by_blocks(const WorkItem& p, Fn&& f) const {
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
  void load_queries(const WorkItem& p, float* to) const {
    by_rows(p, [&](size_t, size_t, size_t row) {
      const float* own = q + row * k.dim;
      if (heads.rotate)
        rotate_row(target, own, k.dim, logits.scale, to);
      else
        target.rows.scale(own, k.dim, logits.scale, to);
      std::fill(to + k.dim, to + k_pad, 0.0f);
      to += k_pad;
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
      store.kernels->kv.from_tiled(at(store, b.row), t, store.dim, &store == &v, rows + t * store.at.row_bytes);
    }
    return rows;
  }
  void to_floats(const Store& store, const Block& b, float* tile) const {
    const KvKernels& kv = store.kernels->kv;
    if (tiled && kv.tiled_floats) {
      kv.tiled_floats(at(store, b.row), b.tokens, store.dim, &store == &v, tile, store.pad());
    } else {
      const uint8_t* rows = rows_of(store, b);
      kv.floats(rows, b.tokens, store.at.row_bytes, store.dim, to_prefetch(store, b), tile, store.pad());
    }
  }
  void some_tokens(const WorkItem& p, size_t rows, const Block& b, const Scratch& own) const {
    float* s = own.scores;
    if (rows <= kSkinnyQueries) {
      const uint8_t *keys = rows_of(k, b), *values = rows_of(v, b);
      k.kernels->kv.scores(own.queries, rows, k_pad, keys, b.tokens, k.at.row_bytes, k.dim, to_prefetch(k, b), s);
      weigh(p, rows, b, own);
      v.kernels->kv.values(s, rows, values, b.tokens, v.at.row_bytes, v.dim, to_prefetch(v, b), own.acc, v_pad);
    } else {
      by_floats(p, rows, b, own);
    }
  }
  void by_floats(const WorkItem& p, size_t rows, const Block& b, const Scratch& own) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(own.tile);
    const auto row_bytes = [](size_t pad) { return pad * sizeof(float); };
    to_floats(k, b, own.tile);
    floats.scores(own.queries, rows, k_pad, bytes, b.tokens, row_bytes(k_pad), k_pad, {}, own.scores);
    weigh(p, rows, b, own);
    to_floats(v, b, own.tile);
    floats.values(own.scores, rows, bytes, b.tokens, row_bytes(v_pad), v_pad, {}, own.acc, v_pad);
  }
  void on_matrix_units(const WorkItem& p, size_t rows, const Block& b, const Scratch& own) const {
    to_floats(k, b, own.tile);
    matrix->scores(own.tile, rows, b.tokens, k_pad, own.key_units, own.scores);
    weigh(p, rows, b, own);
    to_floats(v, b, own.tile);
    matrix->values(own.scores, rows, own.tile, b.tokens, v_pad, own.value_units, own.acc);
  }
  KvBlockRows block_rows(const Store& store, const Block& b) const {
    return {at(store, b.row), b.tokens, store.at.row_bytes, store.dim,
            store.pad(),      tiled,    at(store, b.next),  at(store, b.later)};
  }
  // The keys of a block beside the values of the one before it.
  void over_integers(const WorkItem& p, size_t rows, const Scratch& own) const {
    const size_t bytes = integers->query_bytes(k_pad);
    auto* packed = packed_queries.get<uint8_t>(p.heads * bytes);
    const KvKernels &keys = k.kernels->kv, &values = v.kernels->kv;
    for (size_t h = 0; h < p.heads; ++h) keys.pack_queries(own.of(h, rows).queries, rows, k_pad, packed + h * bytes);
    Block before{};
    const auto step = [&](const Block& b) {
      if (b.tokens) before.later = b.next;
      integers->step({&keys, &values, block_rows(k, b), block_rows(v, before), packed + b.head * bytes, rows,
                      own.scores, own.of(before.head, rows).acc});
      if (b.tokens) weigh(p, rows, b, own.of(b.head, rows));
      before = b;
    };
    by_blocks(p, [&](const Block& b) {
      const bool few = tiled && b.tokens <= kFewTokens;
      step(few ? Block{} : b);
      if (few) by_floats(p, rows, b, own.of(b.head, rows));
    });
    step(Block{});
  }
  void weigh(const WorkItem& p, size_t rows, const Block& b, const Scratch& own) const {
    float *s = own.scores, *acc = own.acc;
    if (logits.softcap > 0) {
      for (size_t i = 0; i < rows * kKvTokens; ++i) s[i] = logits.softcap * std::tanh(s[i] / logits.softcap);
    }
    const size_t first = pieces.position(p.sequence, p.first);
    if (b.at + b.tokens > pieces.end_seen(p.sequence, first) || logits.window || logits.around || logits.spans) {
      hide(p, rows, b, s);
    }
    for (size_t r = 0; r < rows; r += kSkinnyQueries) {
      target.kv.weigh(s + r * kKvTokens, std::min(kSkinnyQueries, rows - r), b.tokens, own.state + r, own.factors + r);
      if (matrix && rows > kSkinnyQueries) matrix->between();
    }
    for (size_t r = 0; r < rows; ++r, acc += v_pad) {
      if (own.factors[r] != 1) target.rows.scale(acc, v_pad, own.factors[r], acc);
    }
  }
  // Takes away what a query must not see: tokens after its own, and those before its window.
  void hide(const WorkItem& p, size_t rows, const Block& b, float* s) const {
    for (size_t r = 0; r < rows; ++r, s += kKvTokens) {
      const size_t own = pieces.position(p.sequence, p.first + r / group);
      const size_t end = pieces.end_seen(p.sequence, own), first = pieces.first_seen(p.sequence, own);
      for (size_t t = end > b.at ? end - b.at : 0; t < b.tokens; ++t) s[t] = kNone;
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
    target.rows.scale(acc, v.dim, by, to);
  }
  // Joins the pieces from `first` on that share their queries.
  void join(const WorkItem* first, const KvState* partials, const float* sums) const {
    float* acc = scratch.get<float>(v_pad);
    by_rows(*first, [&](size_t r, size_t head, size_t row) {
      KvState all{kNone, 0};
      for (size_t i = 0; i < first->parts; ++i) all.max = std::max(all.max, partials[first[i].partial + r].max);
      std::fill_n(acc, v_pad, 0.0f);
      for (size_t i = 0; i < first->parts; ++i) {
        const KvState& one = partials[first[i].partial + r];
        const float factor = one.max == kNone ? 0 : std::exp(one.max - all.max);
        const float* from = sums + (first[i].partial + r) * v_pad;
        all.sum += one.sum * factor;
        for (size_t d = 0; d < v_pad; ++d) acc[d] += from[d] * factor;
      }
      finish(all, head, acc, out + row * v.dim);
    });
  }
};

}  // namespace

void attend(const Store& k, const Store& v, const Heads& heads, const Sequences& sequences, const PageTables& tables,
            const Logits& logits, const float* q, size_t q_heads, const Fresh* fresh, float* out, bool exact,
            bool alone, int threads, RowRange range) {
  const Call call{k, v, heads, sequences, tables, logits, q, q_heads, fresh, out, exact, alone};
  if (range.first == 0) call.write_prompts(threads);
  thread_local std::vector<WorkItem> pieces;  // kept, so that nothing is allocated again
  pieces.clear();
  const size_t rows = call.pieces.cut(pieces, threads, range);
  const std::vector<WorkItem>& all = pieces;
  auto* partials = partial_results.get<KvState>(rows + (rows * call.v_pad * sizeof(float)) / sizeof(KvState) + 1);
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
