// Products by the transpose of a matrix, beside sums in double precision.
#include <algorithm>
#include <cmath>

#include "linear.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr size_t kTokens[] = {1, 2, 3, 6, 7, 13, 50};
constexpr size_t kRows[] = {1, 15, 16, 17, 33, 150};
constexpr size_t kLengths[] = {1, 15, 31, 64, 96, 255, 256, 288, 800};

double error_of(std::span<const float> got, std::span<const float> grad, const Floats& w, size_t n, size_t k) {
  const double top = std::max(largest(w), 0.05);
  double error = 0;
  for (size_t t = 0; t < grad.size() / n; ++t) {
    const std::span<const float> row = grad.subspan(t * n, n);
    const double room = magnitude(row) * top + 1e-30;
    for (size_t i = 0; i < k; ++i) {
      double sum = 0;
      for (size_t r = 0; r < n; ++r) sum += static_cast<double>(row[r]) * static_cast<double>(w[r * k + i]);
      error = worse(error, std::fabs(static_cast<double>(got[t * k + i]) - sum) / room);
    }
  }
  return error;
}

void backward_case(Run& run, size_t format, size_t m) {
  const size_t n = run.random.one_of(kRows), k = run.random.one_of(kLengths), group = random_group(run.random, format);
  const Edge edge = run.edge();
  const Kernels& kernels = run.target.kernels()[format];
  const Layout at = kernels.layout(k, group);
  run.at("n %zu, k %zu, %zu tokens, group %zu, guard at the %s", n, k, m, group, edge_name(edge));
  const Bytes rows = random_rows(run.random, format, n, k, at);
  const Guarded<uint8_t> bytes(rows, edge);
  const Guarded<float> grad(normals(run.random, m * n), edge), out(m * k, edge), other(m * k, edge);
  const Matrix w{&kernels, at, bytes.data(), n, k};
  const int threads = run.threads();
  multiply_transposed(w, grad.data(), m, out.data(), 1);
  multiply_transposed(w, grad.data(), m, other.data(), threads);
  const double error = error_of(out, grad, decoded(run.scalar, format, rows, n, k, at), n, k);
  run.expect(error < 1e-5, "error %.2g, at most 1e-5 was expected", error);
  run.expect(same_floats(out, other), "%d threads give other bits than one", threads);
  run.expect(out.intact() && other.intact(), "written outside of the result");
}

}  // namespace

void check_backward(Run& run, size_t format) {
  for (const size_t m : kTokens) {
    for (size_t i = 0; i < run.draws(1, 20); ++i) backward_case(run, format, m);
  }
}

}  // namespace fewbit::selftest
