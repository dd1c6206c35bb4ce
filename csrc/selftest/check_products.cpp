// Products through `multiply` and `multiply_gated`, as a model calls them, beside sums in double precision.
#include <algorithm>
#include <cmath>
#include <functional>

#include "formats/real.h"
#include "linear.h"
#include "logits.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr const char* kInputNames[] = {"as usual", "8 bits", "16 bits", "exact"};  // by Activations
constexpr size_t kColumns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 70};     // of activations: every kernel
constexpr size_t kRows[] = {1, 3, 15, 16, 17, 33, 69};
constexpr size_t kInterleavedRows[] = {16, 17, 33, 69};
constexpr size_t kLengths[] = {1, 31, 32, 64, 96, 255, 256, 288, 512, 800};
constexpr size_t kLongestInterleaved = 768;
constexpr size_t kMostIn16Bits = 9;  // rows in 16 bits, unless in full: they take twice as many columns

struct Shape {
  size_t n, k, m, group;
  bool interleaved;
  Activations inputs;
  Edge edge;
};

Shape random_shape(Run& run, size_t format, size_t m, bool interleaved, Activations inputs, Edge edge) {
  Random& random = run.random;
  if (interleaved) {
    const size_t values = run.target.kernels()[format].interleaves;
    constexpr size_t groups[] = {0, 32, 32, 64, 128};
    return {random.one_of(kInterleavedRows),
            values * (1 + random.below(kLongestInterleaved / values)),
            m,
            has_groups(format) ? random.one_of(groups) : 0,
            true,
            inputs,
            edge};
  }
  return {random.one_of(kRows), random.one_of(kLengths), m, random_group(random, format), false, inputs, edge};
}

// A matrix beside a guard page, and what it stands for.
struct Weights {
  Matrix matrix;
  Guarded<uint8_t> bytes;
  Floats floats;  // n rows of k

  Weights(Run& run, size_t format, const Layout& at, const Shape& s, const Bytes& rows)
      : matrix{&run.target.kernels()[format], at, nullptr, s.n, s.k},
        bytes(rows.size(), s.edge),
        floats(decoded(run.scalar, format, rows, s.n, s.k, at)) {
    matrix.at.interleaved = s.interleaved;
    matrix.data = bytes.data();
    if (!s.interleaved) {
      std::copy(rows.begin(), rows.end(), bytes.data());
      return;
    }
    const Using scalar(run.scalar);
    Matrix plain = matrix;
    plain.data = rows.data();
    interleave(plain, false, bytes.data(), 1);
  }
};

Weights make_weights(Run& run, size_t format, const Shape& s) {
  const Layout at = run.target.kernels()[format].layout(s.k, s.group);
  return Weights(run, format, at, s, random_rows(run.random, format, s.n, s.k, at));
}

bool can(const Run& run, size_t format, const Shape& s) {
  const Kernels& kernels = run.target.kernels()[format];
  return !s.interleaved || can_interleave(kernels, kernels.layout(s.k, s.group), s.k);
}

Way way_of(const Matrix& w, const Shape& s) { return choose(*w.kernels, w.at, w.k, s.m, s.inputs); }

bool on_tiles(Path path) { return path == Path::fused || path == Path::packed; }

void round_to_bf16(Floats& x) {
  for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
}

// Activations as floats after they were rounded to 8 or 16 bits.
Floats in_bits(const Run& run, const Floats& x, size_t m, size_t k, bool twice) {
  const Using scalar(run.scalar);
  std::vector<Activation> codes(activation_count(twice ? 2 * m : m, k));
  Floats out(x.size());
  quantize_activations(x.data(), m, k, twice, codes.data(), 1);
  decode_activations(codes.data(), m, k, twice, out.data());
  return out;
}

// What a kernel makes of activations, and how far its sums may be from those of double precision, as a share of the sum
// of magnitudes of activations times the largest weight.
struct Rounded {
  Floats x, w;
  double limit;
};
Rounded rounded(const Run& run, const Floats& x, const Floats& w, Way way, const Shape& s) {
  Rounded out{x, w, s.k < 32 ? 1e-5 : 1e-6};  // few weights may all be small differences
  if (on_tiles(way.path)) {
    round_to_bf16(out.x);
    round_to_bf16(out.w);
    out.limit = s.k >= 255 ? 1e-4 : 8e-3;
  } else if (way.path != Path::exact) {
    out.x = in_bits(run, x, s.m, s.k, way.twice);
  }
  return out;
}

// A few weights may be zero or small as differences of larger numbers, of which the largest is about this.
constexpr double kLeastTop = 0.05;

struct Exact {
  std::vector<double> y, room;  // (m, n) sums, and what their terms can add up to
};
Exact multiplied(const Rounded& r, const Shape& s) {
  Exact out;
  const double top = std::max(largest(r.w), kLeastTop);
  for (size_t c = 0; c < s.m; ++c) {
    const std::span<const float> x(r.x.data() + c * s.k, s.k);
    const double room = magnitude(x) * top + 1e-30;
    for (size_t row = 0; row < s.n; ++row) {
      out.y.push_back(sum_of(x, {r.w.data() + row * s.k, s.k}));
      out.room.push_back(room);
    }
  }
  return out;
}

double error_of(std::span<const float> got, const Exact& expected) {
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = worse(error, std::fabs(static_cast<double>(got[i]) - expected.y[i]) / expected.room[i]);
  }
  return error;
}

Inputs inputs_of(const Guarded<float>& x, const Shape& s) {
  Inputs in{s.m, s.k};
  in.x = x.data();
  return in;
}

void name_case(Run& run, const Shape& s, Way way) {
  run.at("%s, n %zu, k %zu, %zu columns, group %zu, %s, %s, guard at the %s", path_name(way.path), s.n, s.k, s.m,
         s.group, s.interleaved ? "interleaved" : "rows", kInputNames[static_cast<int>(s.inputs)], edge_name(s.edge));
}

void product_case(Run& run, size_t format, const Shape& s) {
  if (!can(run, format, s)) return;
  const Weights w = make_weights(run, format, s);
  const Way way = way_of(w.matrix, s);
  name_case(run, s, way);
  const Floats values = normals(run.random, s.m * s.k);
  const Guarded<float> x(values, s.edge), y(s.m * s.n, s.edge), other(s.m * s.n, s.edge);
  const Product one{w.matrix, y.data()}, other_one{w.matrix, other.data()};
  const int threads = run.threads();
  multiply({&one, 1}, inputs_of(x, s), s.inputs, 1);
  multiply({&other_one, 1}, inputs_of(x, s), s.inputs, threads);
  const Rounded numbers = rounded(run, values, w.floats, way, s);
  const double error = error_of(y, multiplied(numbers, s));
  run.expect(error < numbers.limit, "error %.2g, at most %.2g was expected", error, numbers.limit);
  run.expect(same_floats(y, other), "%d threads give other bits than one", threads);
  run.expect(y.intact() && other.intact(), "written outside of the result");
}

// Rows that are multiplied as if there were no others.
void alone_case(Run& run, size_t format, const Shape& s) {
  if (!can(run, format, s)) return;
  const Weights w = make_weights(run, format, s);
  Shape one = s;
  one.m = 1;
  name_case(run, s, way_of(w.matrix, one));
  const Guarded<float> x(normals(run.random, s.m * s.k), s.edge);
  const Guarded<float> y(s.m * s.n, s.edge), other(s.m * s.n, s.edge);
  const auto call = [&](size_t m, size_t row, const Guarded<float>& to, int threads) {
    const Product product{w.matrix, to.data() + row * s.n};
    Inputs in{m, s.k, x.data() + row * s.k};
    in.alone = true;
    multiply({&product, 1}, in, s.inputs, threads);
  };
  call(s.m, 0, y, run.threads());
  for (size_t row = 0; row < s.m; ++row) call(1, row, other, 1);
  run.expect(same_floats(y, other), "a row alone gives other bits than in the batch");
  run.expect(y.intact() && other.intact(), "written outside of the result");
}

// The largest results of each row in 16 bits, the others in 8.
void largest_case(Run& run, size_t format, const Shape& s) {
  if (!can(run, format, s) || s.inputs != Activations::int8) return;
  const Weights w = make_weights(run, format, s);
  name_case(run, s, way_of(w.matrix, s));
  const Guarded<float> x(normals(run.random, s.m * s.k), s.edge), norms(s.n, s.edge);
  const Guarded<float> y(s.m * s.n, s.edge), full(s.n, s.edge);
  const std::vector<int32_t> tops(s.m, 3);
  row_norms(w.matrix, norms.data(), run.threads());
  if (!multiply_largest(w.matrix, norms.data(), inputs_of(x, s), tops.data(), y.data(), run.threads())) return;
  const size_t count = std::min<size_t>(3, s.n);
  bool same = true;
  for (size_t r = 0; r < s.m; ++r) {
    const Product product{w.matrix, full.data()};
    multiply({&product, 1}, Inputs{1, s.k, x.data() + r * s.k}, Activations::int16, 1);
    Floats found(y.data() + r * s.n, y.data() + (r + 1) * s.n), expected(full.data(), full.data() + s.n);
    std::partial_sort(found.begin(), found.begin() + static_cast<long>(count), found.end(), std::greater<>());
    std::partial_sort(expected.begin(), expected.begin() + static_cast<long>(count), expected.end(), std::greater<>());
    same &= std::equal(found.begin(), found.begin() + static_cast<long>(count), expected.begin());
  }
  run.expect(same, "the largest results are not those of 16 bits");
  run.expect(y.intact() && norms.intact(), "written outside of the result");
}

// Two products of the same activations, after a norm, with a bias and a residual.
void joined_case(Run& run, size_t format, const Shape& s) {
  if (!can(run, format, s)) return;
  const Weights a = make_weights(run, format, s), b = make_weights(run, format, s);
  name_case(run, s, way_of(a.matrix, s));
  const Guarded<float> x(normals(run.random, s.m * s.k), s.edge), weight(normals(run.random, s.k), s.edge);
  const Guarded<float> bias(normals(run.random, s.n), s.edge), residual(normals(run.random, s.m * s.n), s.edge);
  const Guarded<float> y1(s.m * s.n, s.edge), y2(s.m * s.n, s.edge), normed(s.m * s.k, s.edge);
  const Product products[] = {{a.matrix, y1.data(), bias.data()}, {b.matrix, y2.data(), nullptr, residual.data()}};
  Inputs in = inputs_of(x, s);
  in.norm = {weight.data(), 1e-5f, normed.data()};
  multiply(products, in, s.inputs, run.threads());
  const Floats after(normed.data(), normed.data() + normed.size());
  const Rounded ra = rounded(run, after, a.floats, way_of(a.matrix, s), s);
  const Rounded rb = rounded(run, after, b.floats, way_of(b.matrix, s), s);
  Exact first = multiplied(ra, s), second = multiplied(rb, s);
  for (size_t i = 0; i < s.m * s.n; ++i) {
    first.y[i] += static_cast<double>(bias[i % s.n]);
    second.y[i] += static_cast<double>(residual[i]);
    first.room[i] += std::fabs(first.y[i]);
    second.room[i] += std::fabs(second.y[i]);
  }
  const double error = worse(error_of(y1, first), error_of(y2, second));
  run.expect(error < ra.limit, "two products: error %.2g, at most %.2g was expected", error, ra.limit);
  run.expect(y1.intact() && y2.intact() && normed.intact(), "written outside of the result");
}

double silu(double x) { return x / (1 + std::exp(-x)); }

void gated_case(Run& run, size_t format, const Shape& s) {
  if (!can(run, format, s)) return;
  const Weights gate = make_weights(run, format, s), up = make_weights(run, format, s);
  const Way way = way_of(gate.matrix, s);
  name_case(run, s, way);
  const Floats values = normals(run.random, s.m * s.k);
  const Guarded<float> x(values, s.edge), y(s.m * s.n, s.edge), other(s.m * s.n, s.edge);
  const int threads = run.threads();
  multiply_gated(gate.matrix, up.matrix, Gate::silu, inputs_of(x, s), y.data(), s.inputs, 1);
  multiply_gated(gate.matrix, up.matrix, Gate::silu, inputs_of(x, s), other.data(), s.inputs, threads);
  const Rounded rg = rounded(run, values, gate.floats, way, s), ru = rounded(run, values, up.floats, way, s);
  const Exact g = multiplied(rg, s), u = multiplied(ru, s);
  Exact expected = g;
  for (size_t i = 0; i < g.y.size(); ++i) {  // the slope of silu is at most 1.1
    expected.y[i] = silu(g.y[i]) * u.y[i];
    expected.room[i] = 1.1 * g.room[i] * (std::fabs(u.y[i]) + u.room[i] * rg.limit) +
                       std::fabs(silu(g.y[i])) * u.room[i] + 2 * std::fabs(expected.y[i]);
  }
  const double error = error_of(y, expected);
  run.expect(error < rg.limit, "error %.2g, at most %.2g was expected", error, rg.limit);
  run.expect(same_floats(y, other), "%d threads give other bits than one", threads);
  run.expect(y.intact() && other.intact(), "written outside of the result");
}

// Every number of columns, layout and kind of activations; rows, lengths and groups are drawn.
template <class Fn>
void each_shape(Run& run, size_t format, std::span<const size_t> columns, size_t draws, Fn&& check) {
  for (const size_t m : columns) {
    for (const bool interleaved : {false, true}) {
      if (interleaved && !run.target.kernels()[format].interleaves) continue;
      for (const Activations inputs : {Activations::int8, Activations::int16, Activations::exact}) {
        if (inputs == Activations::int16 && m > kMostIn16Bits && !run.full) continue;
        for (size_t i = 0; i < draws; ++i) {
          check(run, format, random_shape(run, format, m, interleaved, inputs, run.edge()));
        }
      }
    }
  }
}

}  // namespace

void check_products(Run& run, size_t format) {
  each_shape(run, format, kColumns, run.draws(1, 20), product_case);
  constexpr size_t some[] = {1, 6, 20};
  each_shape(run, format, some, run.draws(1, 5), joined_case);
  constexpr size_t together[] = {2, 3, 5, 9, 17, 70};
  each_shape(run, format, together, run.draws(1, 5), alone_case);
  each_shape(run, format, some, run.draws(2, 10), largest_case);
}

void check_gated(Run& run, size_t format) {
  constexpr size_t some[] = {1, 4, 9, 33};
  each_shape(run, format, some, run.draws(1, 10), gated_case);
}

}  // namespace fewbit::selftest
