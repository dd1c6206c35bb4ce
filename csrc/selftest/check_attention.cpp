// Whole attention over pages, beside the same in double precision.
#include <cmath>

#include "attention.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

struct Widths {
  size_t k, v;
};
constexpr Widths kWidths[] = {{64, 64}, {80, 80}, {128, 128}, {192, 128}, {64, 32}, {96, 64}, {48, 80}};
constexpr size_t kGroups[] = {1, 3, 4, 8};  // query heads that share a head of K and V
constexpr size_t kPages[] = {1, 16, 32};    // tokens of one
constexpr size_t kHeads = 2;

struct Sequence {
  size_t tokens, queries;
};
using Lengths = std::span<const Sequence>;
constexpr Sequence kShort[] = {{1, 1}, {70, 1}, {13, 13}, {50, 7}, {40, 0}};
constexpr Sequence kLong[] = {{147, 2}, {2100, 1}};  // enough for integers, and for two pieces of one sequence

struct Case {
  Lengths sequences;
  Widths dim;
  size_t group = 0, page_tokens = 0, window = 0;
  bool rotate = false, exact = false, by_fresh = false;
  float softcap = 0;
  Edge edge = Edge::end;
};

Case random_case(Run& run, bool is_long) {
  Random& random = run.random;
  constexpr size_t windows[] = {0, 0, 5, 40, 150};
  constexpr float softcaps[] = {0, 0, 3};
  Case out{is_long ? Lengths(kLong) : Lengths(kShort), random.one_of(kWidths)};
  out.group = random.one_of(kGroups);
  out.page_tokens = is_long ? 32 : random.one_of(kPages);
  out.window = random.one_of(windows);
  out.rotate = random.below(2);
  out.exact = random.below(2);
  out.by_fresh = random.below(2);
  out.softcap = random.one_of(softcaps);
  out.edge = run.edge();
  return out;
}

// Sequences whose pages lie anywhere.
struct Batch {
  std::vector<int32_t> tables;
  std::vector<int64_t> table_starts{0}, lengths, q_starts{0};
  std::vector<std::vector<int64_t>> slots;  // of the tokens of each sequence
  size_t pages = 0;

  Batch(Random& random, const Case& c) {
    const size_t page_tokens = c.page_tokens;
    for (const Sequence& s : c.sequences) pages += (s.tokens + page_tokens - 1) / page_tokens;
    for (size_t i = 0; i < pages; ++i) tables.push_back(static_cast<int32_t>(i));
    for (size_t i = pages; i > 1; --i) std::swap(tables[i - 1], tables[random.below(i)]);
    for (const Sequence& s : c.sequences) {
      const auto first = static_cast<size_t>(table_starts.back());
      slots.emplace_back();
      for (size_t t = 0; t < s.tokens; ++t) {
        const auto page = static_cast<size_t>(tables[first + t / page_tokens]);
        slots.back().push_back(static_cast<int64_t>(page * page_tokens + t % page_tokens));
      }
      table_starts.push_back(static_cast<int64_t>(first + (s.tokens + page_tokens - 1) / page_tokens));
      lengths.push_back(static_cast<int64_t>(s.tokens));
      q_starts.push_back(q_starts.back() + static_cast<int64_t>(s.queries));
    }
  }
  size_t rows() const { return static_cast<size_t>(q_starts.back()); }
  Sequences all() const { return {lengths.data(), q_starts.data(), lengths.size()}; }
  PageTables page_tables() const { return {tables.data(), table_starts.data()}; }
};

// K or V: what tokens have of it, where it is packed, and what the packed rows stand for.
struct Side {
  size_t dim;
  std::vector<Floats> x;  // of each sequence, (tokens, kHeads, dim)
  Layout at;
  Guarded<uint8_t> bytes;
  Store store;

  Side(Run& run, size_t format, const Case& c, const Batch& batch, size_t dim)
      : dim(dim),
        at(kernels(run, format).layout(kv_row_values(kernels(run, format), dim), 1)),
        bytes(batch.pages * kHeads * c.page_tokens * at.row_bytes, c.edge),
        store{&kernels(run, format), at, bytes.data(), Order::rows, dim} {
    for (const Sequence& s : c.sequences) x.push_back(normals(run.random, s.tokens * kHeads * dim));
  }
  static const Kernels& kernels(const Run& run, size_t format) { return run.target.kernels()[format]; }

  Heads heads(const Case& c, bool rotate) const { return {kHeads, c.page_tokens, rotate}; }
  // All tokens, or all but the queries' own.
  void write(const Case& c, const Batch& batch, bool rotate) const {
    for (size_t s = 0; s < x.size(); ++s) {
      const size_t count = c.sequences[s].tokens - (c.by_fresh ? c.sequences[s].queries : 0);
      kv_write(store, heads(c, rotate), x[s].data(), batch.slots[s].data(), count, 1);
    }
  }
  // The values of the queries' own tokens, in the order of the queries.
  Floats fresh(const Case& c) const {
    Floats out;
    for (size_t s = 0; s < x.size(); ++s) {
      const size_t first = (c.sequences[s].tokens - c.sequences[s].queries) * kHeads * dim;
      out.insert(out.end(), x[s].begin() + static_cast<ptrdiff_t>(first), x[s].end());
    }
    return out;
  }
  Floats row(const Run& run, size_t format, const Case& c, int64_t slot, size_t head) const {
    const auto place = static_cast<size_t>(slot);
    const size_t page = place / c.page_tokens, token = place % c.page_tokens;
    const uint8_t* from = bytes.data() + ((page * kHeads + head) * c.page_tokens + token) * at.row_bytes;
    Floats out(kv_row_values(kernels(run, format), dim));
    run.scalar.kernels()[format].decode(from, out.size(), at, out.data());
    out.resize(dim);
    return out;
  }
};

// The Hadamard transform of all runs of as many values as the largest power of two that divides the row.
std::vector<double> rotated(std::span<const float> x) {
  const size_t size = x.size() & -x.size();
  std::vector<double> out(x.begin(), x.end());
  for (size_t h = 1; h < size; h *= 2) {
    for (size_t i = 0; i < out.size(); ++i) {
      if (i & h) continue;
      const double a = out[i], b = out[i + h];
      out[i] = a + b;
      out[i + h] = a - b;
    }
  }
  for (double& v : out) v /= std::sqrt(static_cast<double>(size));
  return out;
}

// One head of K and V of one sequence, as it was packed.
struct Packed {
  std::vector<std::vector<double>> k, v;
};
Packed unpacked(const Run& run, size_t format, const Case& c, const Batch& batch, const Side& k, const Side& v,
                size_t s, size_t head) {
  Packed out;
  for (const int64_t slot : batch.slots[s]) {
    const Floats key = k.row(run, format, c, slot, head), value = v.row(run, format, c, slot, head);
    out.k.push_back(c.rotate ? rotated(key) : std::vector<double>(key.begin(), key.end()));
    out.v.emplace_back(value.begin(), value.end());
  }
  return out;
}

std::vector<double> attended(const Case& c, const Packed& p, const float* q, size_t position, float scale) {
  const size_t first = c.window && position + 1 > c.window ? position + 1 - c.window : 0;
  std::vector<double> out(c.dim.v), scores;
  double top = -1e300, sum = 0;
  for (size_t t = first; t <= position; ++t) {
    double score = 0;
    for (size_t d = 0; d < c.dim.k; ++d) score += static_cast<double>(q[d]) * p.k[t][d];
    score *= static_cast<double>(scale);
    if (c.softcap > 0) score = double(c.softcap) * std::tanh(score / double(c.softcap));
    scores.push_back(score);
    top = std::fmax(top, score);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const double w = std::exp(scores[i] - top);
    sum += w;
    for (size_t d = 0; d < c.dim.v; ++d) out[d] += w * p.v[first + i][d];
  }
  for (double& o : out) o /= sum;
  return out;
}

// The size of all differences beside the size of all results.
struct Sums {
  double wrong = 0, right = 0;

  void add(std::span<const double> expected, const float* got) {
    for (size_t d = 0; d < expected.size(); ++d) {
      const double difference = static_cast<double>(got[d]) - expected[d];
      wrong += difference * difference;
      right += expected[d] * expected[d];
    }
  }
};
double error_of(const Run& run, size_t format, const Case& c, const Batch& batch, const Side& k, const Side& v,
                const Guarded<float>& q, const Guarded<float>& out, float scale) {
  Sums sums;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [tokens, queries] = c.sequences[s];
    for (size_t kv_head = 0; kv_head < kHeads && queries > 0; ++kv_head) {
      const Packed packed = unpacked(run, format, c, batch, k, v, s, kv_head);
      for (size_t i = 0; i < queries * c.group; ++i) {
        const size_t query = i / c.group, row = static_cast<size_t>(batch.q_starts[s]) + query;
        const size_t at = (row * kHeads + kv_head) * c.group + i % c.group;
        sums.add(attended(c, packed, q.data() + at * c.dim.k, tokens - queries + query, scale),
                 out.data() + at * c.dim.v);
      }
    }
  }
  return std::sqrt(sums.wrong / sums.right);
}

// Floats are multiplied as they are. Beside what is packed, queries and weights may have 16 bits; tiles take bf16.
double limit(const Run& run, size_t format, const Case& c) {
  if (run.target.products.tiles && !c.exact) return 5e-3;
  return run.target.kernels()[format].kv.block == 1 ? 2e-6 : 5e-5;
}

// Each query as if it were the only one.
template <class Fn>
void by_one(const Case& c, const Batch& batch, Fn&& f) {
  constexpr int64_t starts[] = {0, 1};
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [tokens, queries] = c.sequences[s];
    for (size_t query = 0; query < queries; ++query) {
      const auto length = static_cast<int64_t>(tokens - queries + query + 1);
      f(Sequences{&length, starts, 1}, PageTables{batch.tables.data(), batch.table_starts.data() + s},
        static_cast<size_t>(batch.q_starts[s]) + query);
    }
  }
}

void attention_case(Run& run, size_t format, const Case& c) {
  run.at(
      "%s sequences, dims %zu and %zu, %zu queries a head, pages of %zu, window %zu, softcap %g%s%s%s, guard at the %s",
      c.sequences.size() == std::size(kLong) ? "long" : "short", c.dim.k, c.dim.v, c.group, c.page_tokens, c.window,
      static_cast<double>(c.softcap), c.rotate ? ", rotated" : "", c.exact ? ", exact" : "",
      c.by_fresh ? ", packed on the way" : "", edge_name(c.edge));
  const Batch batch(run.random, c);
  const Side k(run, format, c, batch, c.dim.k), v(run, format, c, batch, c.dim.v);
  k.write(c, batch, c.rotate);
  v.write(c, batch, false);
  const size_t q_heads = kHeads * c.group;
  const Guarded<float> q(normals(run.random, batch.rows() * q_heads * c.dim.k), c.edge);
  const Guarded<float> out(batch.rows() * q_heads * c.dim.v, c.edge), other(out.size(), c.edge);
  const Guarded<float> fresh_k(k.fresh(c), c.edge), fresh_v(v.fresh(c), c.edge);
  std::vector<int64_t> slots;
  for (size_t s = 0; s < batch.slots.size(); ++s) {
    slots.insert(slots.end(), batch.slots[s].end() - static_cast<ptrdiff_t>(c.sequences[s].queries),
                 batch.slots[s].end());
  }
  const Fresh fresh{fresh_k.data(), fresh_v.data(), slots.data()};
  const Logits logits{1 / std::sqrt(static_cast<float>(c.dim.k)), c.window, c.softcap, nullptr};
  const auto call = [&](const Guarded<float>& to, int threads, bool alone = false) {
    attend(k.store, v.store, k.heads(c, c.rotate), batch.all(), batch.page_tables(), logits, q.data(), q_heads,
           c.by_fresh ? &fresh : nullptr, to.data(), c.exact, alone, threads);
  };
  const int threads = run.threads();
  call(out, 1);
  call(other, threads);
  const double error = error_of(run, format, c, batch, k, v, q, out, logits.scale);
  run.expect(error < limit(run, format, c), "error %.2g, at most %.2g was expected", error, limit(run, format, c));
  run.expect(same_floats(out, other), "%d threads give other bits than one", threads);
  call(other, threads, true);
  by_one(c, batch, [&](const Sequences& one, const PageTables& tables, size_t row) {
    attend(k.store, v.store, k.heads(c, c.rotate), one, tables, logits, q.data() + row * q_heads * c.dim.k, q_heads,
           nullptr, out.data() + row * q_heads * c.dim.v, c.exact, true, 1);
  });
  run.expect(same_floats(out, other), "a query alone gives other bits than in the batch");
  run.expect(out.intact() && other.intact() && k.bytes.intact() && v.bytes.intact(), "written outside of its memory");
}

}  // namespace

void check_attention(Run& run, size_t format) {
  const Kernels& kernels = run.target.kernels()[format];
  if (!kernels.kv.scores) return;
  for (size_t i = 0; i < run.draws(3, 60); ++i) attention_case(run, format, random_case(run, i % 3 == 2));
}

}  // namespace fewbit::selftest
