// How attention is cut into pieces of work, so that every thread has some.
#pragma once
#include <algorithm>
#include <vector>

#include "attention.h"

namespace fewbit {

constexpr size_t kSplit = 2048;         // tokens of the context that one piece of work reads
constexpr size_t kMaxPieceRows = 64;    // queries times heads that share K and V, in one piece
constexpr size_t kPiecesPerThread = 8;  // before one takes several heads
constexpr size_t kShort = 4096;         // tokens times heads: a piece for each thread is enough

// Some queries of a sequence, some KV heads, a part of the context. Pages are read as they lie, head by head: that is
// faster than to come back for each.
struct WorkItem {
  size_t sequence;
  size_t head, heads;     // the first, and how many
  size_t first, count;    // queries, by their place in the sequence's
  size_t from, to;        // positions of the context
  size_t parts, partial;  // how many pieces share the queries; where their results are kept, if more than one
};

struct Cut {
  const Sequences& sequences;
  size_t kv_heads;
  size_t group;        // query heads that share a head of K and V
  size_t max_queries;  // of a piece, of one head
  const Logits& sees;
  bool tiled;

  size_t queries(size_t s) const { return static_cast<size_t>(sequences.q_starts[s + 1] - sequences.q_starts[s]); }
  size_t position(size_t s, size_t query) const {
    return static_cast<size_t>(sequences.lengths[s]) - queries(s) + query;
  }

  // The positions that a query at `position` sees; both ends grow with the position.
  size_t first_seen(size_t s, size_t position) const {
    if (sees.spans && !sees.causal) return static_cast<size_t>(span(s, position).begin);
    if (!sees.causal) return sees.around && position > sees.around ? position - sees.around : 0;
    const size_t first = first_of_window(position);
    return sees.spans ? std::min(first, static_cast<size_t>(span(s, position).begin)) : first;
  }
  size_t first_of_window(size_t position) const {
    if (sees.chunked && sees.window) return position / sees.window * sees.window;
    return sees.window && position + 1 > sees.window ? position + 1 - sees.window : 0;
  }
  size_t end_seen(size_t s, size_t position) const {
    const auto length = static_cast<size_t>(sequences.lengths[s]);
    if (sees.spans) return static_cast<size_t>(span(s, position).end);
    if (sees.causal) return position + 1;
    return sees.around ? std::min(length, position + sees.around + 1) : length;
  }
  const Span& span(size_t s, size_t position) const {
    return sees
        .spans[static_cast<size_t>(sequences.q_starts[s + 1]) + position - static_cast<size_t>(sequences.lengths[s])];
  }

  // Appends the pieces of some rows; returns how many rows of partial results they have.
  size_t cut(std::vector<WorkItem>& pieces, int threads, RowRange range) const {
    const Amount whole = amount();
    size_t partials = 0;
    by_queries([&](size_t s, size_t first, size_t count) {
      const size_t row = static_cast<size_t>(sequences.q_starts[s]) + first;
      if (row < range.first || row >= range.end) return;
      const Part all = part(s, first, count);
      const size_t together = heads_together(count, whole, threads);
      for (size_t head = 0; head < kv_heads; head += together) {
        const size_t some = std::min(together, kv_heads - head);
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

 private:
  // What part of the context queries from `first` on see, and how many pieces share it. That depends on the sequence
  // alone, so that results do not depend on the threads.
  struct Part {
    size_t from, to, parts;
  };
  Part part(size_t s, size_t first, size_t count) const {
    const size_t low = position(s, first), high = position(s, first + count - 1);
    size_t from = first_seen(s, low);
    const size_t to = end_seen(s, high);
    if (tiled) from = from / kKvTokens * kKvTokens;  // what is too much is hidden
    return {from, to, (to - 1) / kSplit - from / kSplit + 1};
  }
  template <class Fn>
  void by_queries(Fn&& f) const {
    for (size_t s = 0; s < sequences.count; ++s) {
      for (size_t first = 0; first < queries(s); first += max_queries) {
        f(s, first, std::min(max_queries, queries(s) - first));
      }
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
    const size_t most = std::min(kv_heads, kMaxPieceRows / rows);
    const size_t each = all.tokens * kv_heads <= kShort ? 1 : kPiecesPerThread;
    return std::clamp<size_t>(all.parts * kv_heads / (each * static_cast<size_t>(std::max(threads, 1))), 1, most);
  }
};

}  // namespace fewbit
