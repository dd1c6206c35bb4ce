// What a model does with rows of floats beside products.
#include <cmath>

#include "linear.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr size_t kLengths[] = {1, 3, 16, 31, 64, 80, 127, 256, 257, 576, 1000};

// The largest difference as a share of `room`.
double error_of(std::span<const float> got, std::span<const double> expected, double room) {
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) error = worse(error, std::fabs(static_cast<double>(got[i]) - expected[i]));
  return error / room;
}

void quantize_case(Run& run, size_t k, size_t kind) {
  const Edge edge = run.edge();
  run.at("k %zu, values: %s, guard at the %s", k, value_kind_name(kind), edge_name(edge));
  const size_t k_blocks = activation_count(1, k);
  const Guarded<float> x(values_of_kind(run.random, kind, k), edge);
  const Guarded<Activation> own(k_blocks, edge), expected(k_blocks, edge);
  run.target.products.quantize_row(x.data(), k, own.data());
  run.scalar.products.quantize_row(x.data(), k, expected.data());
  bool same = own.intact();
  for (size_t i = 0; i < k_blocks; ++i) {
    same = same && same_bytes<int8_t>(own[i].q, expected[i].q) && same_floats(own[i].d32, expected[i].d32);
  }
  run.expect(same, "not the codes and scales of scalar");
}

void norm_case(Run& run, size_t n) {
  const Edge edge = run.edge();
  run.at("n %zu, guard at the %s", n, edge_name(edge));
  const Guarded<float> x(normals(run.random, n), edge), weight(normals(run.random, n), edge), out(n, edge);
  run.target.rows.norm(x.data(), n, weight.data(), 1e-5f, out.data());
  const double by = 1 / std::sqrt(sum_of(x, x) / static_cast<double>(n) + 1e-5);
  std::vector<double> expected;
  for (size_t i = 0; i < n; ++i) expected.push_back(static_cast<double>(x[i]) * by * static_cast<double>(weight[i]));
  const double error = error_of(out, expected, by * largest(x) * largest(weight));
  run.expect(error < 1e-6 && out.intact(), "error %.2g", error);
}

void rope_case(Run& run, size_t dim, size_t pairs, bool neox) {
  const Edge edge = run.edge();
  constexpr size_t heads = 3;
  run.at("dim %zu, %zu pairs, %s, guard at the %s", dim, pairs, neox ? "neox" : "neighbours", edge_name(edge));
  const Guarded<float> x(normals(run.random, heads * dim), edge);
  const Guarded<float> cosines(normals(run.random, pairs), edge), sines(normals(run.random, pairs), edge);
  Floats expected(x.data(), x.data() + x.size());
  run.target.rows.rope(x.data(), heads, dim, cosines.data(), sines.data(), pairs, neox);
  run.scalar.rows.rope(expected.data(), heads, dim, cosines.data(), sines.data(), pairs, neox);
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) error = worse(error, std::fabs(static_cast<double>(x[i] - expected[i])));
  run.expect(error < 1e-5 && x.intact(), "error %.2g", error);
}

double gate(Gate kind, double x) {
  switch (kind) {
    case Gate::silu: return x / (1 + std::exp(-x));
    case Gate::gelu: return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Gate::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default: return x < 0 ? 0 : x;
  }
}

void gate_case(Run& run, Gate kind, size_t n) {
  const Edge edge = run.edge();
  run.at("gate %d, n %zu, guard at the %s", static_cast<int>(kind), n, edge_name(edge));
  Floats values = normals(run.random, n);
  for (float& v : values) v *= 4;
  const Guarded<float> x(values, edge), out(normals(run.random, n), edge);
  std::vector<double> expected;
  for (size_t i = 0; i < n; ++i)
    expected.push_back(gate(kind, static_cast<double>(x[i])) * static_cast<double>(out[i]));
  const double room = largest(x) * largest(out);
  run.target.rows.gate(kind, x.data(), n, out.data());
  const double error = error_of(out, expected, room);
  run.expect(error < 1e-6 && out.intact(), "error %.2g", error);
}

void rotate_case(Run& run, size_t size, bool in_place) {
  const Edge edge = run.edge();
  run.at("size %zu%s, guard at the %s", size, in_place ? " in place" : "", edge_name(edge));
  const Floats values = normals(run.random, size);
  const Guarded<float> x(values, edge), apart(size, edge);
  const Guarded<float>& out = in_place ? x : apart;
  run.target.rows.rotate(x.data(), size, 0.3f, out.data());
  std::vector<double> expected(size);
  const double by = 0.3 / std::sqrt(static_cast<double>(size));
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) expected[i] += (__builtin_popcountll(i & j) % 2 ? -by : by) * double(values[j]);
  }
  const double error = error_of(out, expected, by * magnitude(values));
  run.expect(error < 1e-6 && out.intact(), "error %.2g", error);
}

void scale_case(Run& run, size_t n) {
  const Edge edge = run.edge();
  run.at("n %zu, guard at the %s", n, edge_name(edge));
  const Guarded<float> x(normals(run.random, n), edge), out(n, edge);
  Floats expected;
  for (const float v : x.all()) expected.push_back(v * 0.7f);
  run.target.rows.scale(x.data(), n, 0.7f, out.data());
  run.expect(same_floats(out, expected) && out.intact(), "not the products");
}

}  // namespace

void check_quantize(Run& run) {
  for (const size_t k : kLengths) {
    for (size_t kind = 0; kind < kValueKinds; ++kind) {
      for (size_t i = 0; i < run.draws(1, 10); ++i) quantize_case(run, k, kind);
    }
  }
}

void check_norm(Run& run) {
  for (const size_t n : kLengths) norm_case(run, n);
}

void check_rope(Run& run) {
  for (const size_t dim : {2, 64, 80, 128, 130}) {
    for (const bool neox : {false, true}) {
      rope_case(run, dim, dim / 2, neox);
      rope_case(run, dim, (dim + 2) / 4, neox);
    }
  }
}

void check_gates(Run& run) {
  for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::relu}) {
    for (const size_t n : kLengths) gate_case(run, kind, n);
  }
}

void check_rotate(Run& run) {
  for (size_t size = 1; size <= 256; size *= 2) {
    for (const bool in_place : {false, true}) rotate_case(run, size, in_place);
  }
}

void check_scale(Run& run) {
  for (const size_t n : kLengths) scale_case(run, n);
}

}  // namespace fewbit::selftest
