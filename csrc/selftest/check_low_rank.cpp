// Terms of adapters, beside sums in double precision; a row alone and rows together give the same bits.
#include <cmath>

#include "formats/read.h"
#include "formats/write.h"
#include "low_rank.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr Real kReals[] = {Real::f32, Real::f16, Real::bf16};
constexpr const char* kNames[] = {"f32", "f16", "bf16"};
constexpr size_t kLengths[] = {1, 7, 16, 31, 32, 33, 64, 100, 259};
constexpr size_t kRanks[] = {1, 2, 3, 4, 5, 8, 15, 16, 17};
constexpr size_t kWidths[] = {1, 3, 15, 16, 17, 33, 63, 64};
constexpr size_t kCounts[] = {1, 2, 3, 4, 5, 9};

struct Reals {
  Bytes bytes;
  Floats values;  // as they are read
};
Reals reals(Random& random, Real real, size_t count) {
  const size_t size = real_bytes(real);
  Reals out{Bytes(count * size), normals(random, count)};
  for (size_t i = 0; i < count; ++i) {
    write_real(real, out.bytes.data() + i * size, out.values[i]);
    out.values[i] = read_real(real, out.bytes.data() + i * size);
  }
  return out;
}

// Rows of a step that use an adapter: some of them, in ascending order.
std::vector<int32_t> chosen_rows(Random& random, size_t count) {
  std::vector<int32_t> out(count);
  int32_t row = -1;
  for (int32_t& one : out) one = row += 1 + static_cast<int32_t>(random.below(3));
  return out;
}

void down_case(Run& run, size_t kind) {
  const size_t k = run.random.one_of(kLengths), ranks = run.random.one_of(kRanks), count = run.random.one_of(kCounts);
  const size_t stride = ranks + run.random.below(3);
  const Edge edge = run.edge();
  run.at("%s, %zu ranks of %zu values, %zu rows, guard at the %s", kNames[kind], ranks, k, count, edge_name(edge));
  const Reals a = reals(run.random, kReals[kind], ranks * k);
  const std::vector<int32_t> rows = chosen_rows(run.random, count);
  const size_t all = static_cast<size_t>(rows.back()) + 1;
  const Guarded<uint8_t> bytes(a.bytes, edge);
  const Guarded<float> x(normals(run.random, all * k), edge), t((count - 1) * stride + ranks, edge), alone(ranks, edge);
  const auto down = run.target.rows.low_rank.down;
  down(kReals[kind], bytes.data(), ranks, k, x.data(), rows.data(), count, t.data(), stride);
  double error = 0;
  bool is_same = true;
  for (size_t j = 0; j < count; ++j) {
    const float* row = x.data() + static_cast<size_t>(rows[j]) * k;
    down(kReals[kind], bytes.data(), ranks, k, x.data(), rows.data() + j, 1, alone.data(), stride);
    is_same = is_same && same_floats({t.data() + j * stride, ranks}, alone);
    for (size_t i = 0; i < ranks; ++i) {
      double sum = 0, room = 1e-30;
      for (size_t c = 0; c < k; ++c) {
        const double part = static_cast<double>(a.values[i * k + c]) * static_cast<double>(row[c]);
        sum += part;
        room += std::fabs(part);
      }
      error = worse(error, std::fabs(static_cast<double>(t[j * stride + i]) - sum) / room);
    }
  }
  run.expect(error < 1e-6, "error %.2g, at most 1e-6 was expected", error);
  run.expect(is_same, "a row alone gives other bits");
  run.expect(t.intact() && alone.intact(), "written outside of the result");
}

void up_case(Run& run, size_t kind) {
  const size_t width = run.random.one_of(kWidths), r = run.random.one_of(kRanks), count = run.random.one_of(kCounts);
  const size_t stride = width + run.random.below(3);
  const Edge edge = run.edge();
  run.at("%s, rank %zu, %zu columns, %zu rows, guard at the %s", kNames[kind], r, width, count, edge_name(edge));
  const Reals b = reals(run.random, kReals[kind], r * width);
  const std::vector<int32_t> rows = chosen_rows(run.random, count);
  const size_t last = static_cast<size_t>(rows.back());
  const Floats before = normals(run.random, last * stride + width);
  const Guarded<uint8_t> bytes(b.bytes, edge);
  const Guarded<float> t(normals(run.random, count * r), edge), y(before, edge), alone(before, edge);
  const auto up = run.target.rows.low_rank.up;
  up(kReals[kind], bytes.data(), r, width, t.data(), rows.data(), count, y.data(), stride);
  for (size_t j = 0; j < count; ++j) {
    up(kReals[kind], bytes.data(), r, width, t.data() + j * r, rows.data() + j, 1, alone.data(), stride);
  }
  Floats sums(before), room(before.size(), 1e-30f);
  for (size_t j = 0; j < count; ++j) {
    for (size_t c = 0; c < width; ++c) {
      const size_t at = static_cast<size_t>(rows[j]) * stride + c;
      double sum = static_cast<double>(before[at]), size = std::fabs(sum);
      for (size_t i = 0; i < r; ++i) {
        const double part = static_cast<double>(t[j * r + i]) * static_cast<double>(b.values[i * width + c]);
        sum += part;
        size += std::fabs(part);
      }
      sums[at] = static_cast<float>(sum);
      room[at] = static_cast<float>(size);
    }
  }
  double error = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double size = static_cast<double>(room[i]);
    error = worse(error, std::fabs(static_cast<double>(y[i]) - static_cast<double>(sums[i])) / size);
  }
  run.expect(error < 1e-6, "error %.2g, at most 1e-6 was expected", error);
  run.expect(same_floats(y, alone), "a row alone gives other bits");
  run.expect(y.intact() && alone.intact(), "written outside of the result");
}

}  // namespace

void check_low_rank(Run& run) {
  for (size_t kind = 0; kind < std::size(kReals); ++kind) {
    for (size_t i = 0; i < run.draws(12, 200); ++i) {
      down_case(run, kind);
      up_case(run, kind);
    }
  }
}

}  // namespace fewbit::selftest
