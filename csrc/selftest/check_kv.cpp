// Rows of the KV cache: scores of queries, sums of values, and scores to weights.
#include <cmath>
#include <limits>

#include "attention.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr size_t kTokens[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32};
constexpr size_t kDims[] = {32, 64, 80, 96, 128};
constexpr size_t kMostQueries = 9;
constexpr double kLimit = 1e-6;  // of what the terms of a sum can add up to

// Packed rows of one head beside a guard page, and what they stand for, zeros after `dim`.
struct Rows {
  size_t tokens, dim, pad;
  Layout at;
  Guarded<uint8_t> bytes;
  Floats floats;  // (tokens, pad)

  Rows(Run& run, size_t format, size_t tokens, size_t dim, Edge edge)
      : tokens(tokens),
        dim(dim),
        pad((dim + 31) / 32 * 32),
        at(kernels(run, format).layout(kv_row_values(kernels(run, format), dim), 1)),
        bytes(tokens * at.row_bytes, edge),
        floats(tokens * pad) {
    const size_t values = kv_row_values(kernels(run, format), dim);
    for (size_t t = 0; t < tokens; ++t) {
      Floats row = normals(run.random, dim);
      row.resize(pad);
      kernels(run, format).encode(row.data(), values, nullptr, at, bytes.data() + t * at.row_bytes);
      kernels(run, format).decode(bytes.data() + t * at.row_bytes, values, at, floats.data() + t * pad);
    }
  }
  std::span<const float> of(size_t token) const { return {floats.data() + token * pad, pad}; }
  static const Kernels& kernels(const Run& run, size_t format) { return run.scalar.kernels()[format]; }
};

Floats queries(Random& random, size_t rows, size_t dim, size_t pad) {
  Floats out;
  for (size_t r = 0; r < rows; ++r) {
    const Floats row = normals(random, dim);
    out.insert(out.end(), row.begin(), row.end());
    out.resize((r + 1) * pad);
  }
  return out;
}

void scores_case(Run& run, size_t format, const Rows& k, size_t rows, Edge edge) {
  run.at("scores of %zu queries, %zu tokens, dim %zu, guard at the %s", rows, k.tokens, k.dim, edge_name(edge));
  const Guarded<float> q(queries(run.random, rows, k.dim, k.pad), edge), s(rows * kKvTokens, edge);
  run.target.kernels()[format].kv.scores(q.data(), rows, k.pad, k.bytes.data(), k.tokens, k.at.row_bytes, k.dim, {},
                                         s.data());
  double error = 0;
  for (size_t r = 0; r < rows; ++r) {
    const std::span<const float> query(q.data() + r * k.pad, k.pad);
    for (size_t t = 0; t < k.tokens; ++t) {
      const double room = magnitude(query) * largest(k.of(t));
      error = worse(error, std::fabs(static_cast<double>(s[r * kKvTokens + t]) - sum_of(query, k.of(t))) / room);
    }
  }
  run.expect(error < kLimit && s.intact(), "error %.2g", error);
}

void values_case(Run& run, size_t format, const Rows& v, size_t rows, Edge edge) {
  run.at("values by %zu queries, %zu tokens, dim %zu, guard at the %s", rows, v.tokens, v.dim, edge_name(edge));
  const Guarded<float> p(normals(run.random, rows * kKvTokens), edge);
  const Floats before = queries(run.random, rows, v.dim, v.pad);
  const Guarded<float> out(before, edge);
  run.target.kernels()[format].kv.values(p.data(), rows, v.bytes.data(), v.tokens, v.at.row_bytes, v.dim, {},
                                         out.data(), v.pad);
  const double top = largest(v.floats) + 1;
  double error = 0;
  for (size_t r = 0; r < rows; ++r) {
    const double room = top * (1 + magnitude({p.data() + r * kKvTokens, v.tokens}));
    for (size_t d = 0; d < v.dim; ++d) {
      double expected = static_cast<double>(before[r * v.pad + d]);
      for (size_t t = 0; t < v.tokens; ++t) expected += double(p[r * kKvTokens + t]) * double(v.of(t)[d]);
      error = worse(error, std::fabs(static_cast<double>(out[r * v.pad + d]) - expected) / room);
    }
  }
  run.expect(error < kLimit && out.intact(), "error %.2g", error);
}

void floats_case(Run& run, size_t format, const Rows& x, Edge edge) {
  run.at("floats of %zu tokens, dim %zu, guard at the %s", x.tokens, x.dim, edge_name(edge));
  const Guarded<float> out(x.tokens * x.pad, edge);
  run.target.kernels()[format].kv.floats(x.bytes.data(), x.tokens, x.at.row_bytes, x.dim, {}, out.data(), x.pad);
  double error = 0;
  for (size_t i = 0; i < out.size(); ++i) error = worse(error, std::fabs(static_cast<double>(out[i] - x.floats[i])));
  error /= largest(x.floats);
  run.expect(error < kLimit && out.intact(), "error %.2g", error);
}

constexpr float kNone = -std::numeric_limits<float>::infinity();

// What is known of the queries before some tokens, and their scores.
struct Scores {
  size_t rows, tokens;
  Floats s;  // (rows, kKvTokens)
  std::vector<KvState> state;
};

// Some queries have seen nothing yet, or see nothing now.
Scores random_scores(Random& random, size_t rows, size_t tokens) {
  Scores out{rows, tokens, Floats(rows * kKvTokens), {}};
  const float size = random.uniform(1, 30);
  for (float& v : out.s) v = size * random.normal();
  for (size_t r = 0; r < rows; ++r) {
    const bool is_first = random.below(3) == 0;
    out.state.push_back(is_first ? KvState{kNone, 0} : KvState{size * random.normal(), random.uniform(1, 20)});
    if (random.below(5) > 0) continue;
    for (size_t t = random.below(tokens); t < tokens; ++t) out.s[r * kKvTokens + t] = kNone;
  }
  return out;
}

// How far the weights of a row are from what its new state says.
double weigh_error(const Scores& before, size_t r, const float* weights, const KvState& after, float factor) {
  constexpr double most = 3001;  // exp(8): a weight may be above 1, see kernels/kv.h
  const float* s = before.s.data() + r * kKvTokens;
  const KvState& old = before.state[r];
  if (after.max == kNone) return factor == 1 && after.sum == 0 ? 0 : 1;
  const double moved = old.max == kNone ? 1 : std::exp(double(old.max) - double(after.max));
  double sum = double(old.sum) * moved, error = std::fabs(moved - double(factor));
  for (size_t t = 0; t < before.tokens; ++t) {
    const double w = std::exp(static_cast<double>(s[t]) - static_cast<double>(after.max));
    if (w > most) return 1;
    sum += w;
    error = worse(error, std::fabs(w - static_cast<double>(weights[t])) / (1 + w));
  }
  return worse(error, std::fabs(sum - static_cast<double>(after.sum)) / (1 + sum));
}

void weigh_case(Run& run, size_t rows, size_t tokens, Edge edge) {
  run.at("%zu queries, %zu tokens, guard at the %s", rows, tokens, edge_name(edge));
  const Scores before = random_scores(run.random, rows, tokens);
  const Guarded<float> s(before.s, edge), factors(rows, edge);
  const Guarded<KvState> state(before.state, edge);
  run.target.kv.weigh(s.data(), rows, tokens, state.data(), factors.data());
  double error = 0;
  for (size_t r = 0; r < rows; ++r) {
    error = worse(error, weigh_error(before, r, s.data() + r * kKvTokens, state[r], factors[r]));
  }
  run.expect(error < 4e-6 && s.intact() && factors.intact() && state.intact(), "error %.2g", error);
}

}  // namespace

void check_kv_rows(Run& run, size_t format) {
  const Kernels& kernels = run.target.kernels()[format];
  if (!kernels.kv.scores) return;
  for (const size_t dim : kDims) {
    for (const size_t tokens : kTokens) {
      for (size_t i = 0; i < run.draws(1, 8); ++i) {
        const Edge edge = run.edge();
        const Rows rows(run, format, tokens, dim, edge);
        scores_case(run, format, rows, 1 + run.random.below(kMostQueries), edge);
        values_case(run, format, rows, 1 + run.random.below(kMostQueries), edge);
        floats_case(run, format, rows, edge);
      }
    }
  }
}

void check_weigh(Run& run) {
  for (size_t rows = 1; rows <= 8; ++rows) {
    for (const size_t tokens : kTokens) {
      for (size_t i = 0; i < run.draws(2, 20); ++i) weigh_case(run, rows, tokens, run.edge());
    }
  }
}

}  // namespace fewbit::selftest
