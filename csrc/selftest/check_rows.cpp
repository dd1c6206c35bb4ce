// Rows of one format: to floats, from floats, and 16 of them interleaved.
#include <memory>

#include "linear.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr size_t kLengths[] = {1, 2, 15, 31, 32, 33, 64, 96, 255, 256, 257, 288, 512, 800};

void decode_case(Run& run, size_t format, size_t k, bool any_bytes) {
  Random& random = run.random;
  const size_t group = random_group(random, format);
  const Edge edge = run.edge();
  const Kernels &own = run.target.kernels()[format], &reference = run.scalar.kernels()[format];
  const Layout at = own.layout(k, group);
  run.at("k %zu, group %zu, %s, guard at the %s", k, group, any_bytes ? "any bytes" : "plain", edge_name(edge));
  const Bytes row = any_bytes ? random_bytes(random, at.row_bytes) : random_rows(random, format, 1, k, at);
  const Guarded<uint8_t> guarded(row, edge);
  const Guarded<float> out(k, edge);
  Floats expected(k);
  own.decode(guarded.data(), k, at, out.data());
  reference.decode(row.data(), k, at, expected.data());
  run.expect(same_floats(out, expected) && out.intact(), "not what scalar decodes");
}

void encode_case(Run& run, size_t format, size_t k, size_t kind, bool weighted) {
  Random& random = run.random;
  const size_t group = random_group(random, format);
  const Edge edge = run.edge();
  const Kernels &own = run.target.kernels()[format], &reference = run.scalar.kernels()[format];
  const Layout at = own.layout(k, group);
  run.at("k %zu, group %zu, values: %s%s, guard at the %s", k, group, value_kind_name(kind),
         weighted ? ", with importance" : "", edge_name(edge));
  const Guarded<float> x(values_of_kind(random, kind, k), edge), weights(values_of_kind(random, 7, k), edge);
  const Guarded<uint8_t> out(at.row_bytes, edge);
  Bytes expected(at.row_bytes);
  const float* importance = weighted ? weights.data() : nullptr;
  own.encode(x.data(), k, importance, at, out.data());
  reference.encode(x.data(), k, importance, at, expected.data());
  run.expect(same_bytes<uint8_t>(out, expected) && out.intact(), "not the bytes of scalar");
}

void move_case(Run& run, const Matrix& w, const Bytes& rows, bool back, Edge edge) {
  run.at("n %zu, k %zu, %s, guard at the %s", w.n, w.k, back ? "back" : "there", edge_name(edge));
  const Guarded<uint8_t> from(rows, edge), out(rows.size(), edge);
  Bytes expected(rows.size());
  Matrix guarded = w, plain = w;
  guarded.data = from.data();
  plain.data = rows.data();
  interleave(guarded, back, out.data(), run.threads());
  const Using scalar(run.scalar);
  interleave(plain, back, expected.data(), 1);
  run.expect(same_bytes<uint8_t>(out, expected) && out.intact(), "not where scalar moves them");
}

}  // namespace

void check_decode(Run& run, size_t format) {
  for (const size_t k : kLengths) {
    for (size_t i = 0; i < run.draws(1, 20); ++i) {
      decode_case(run, format, k, false);
      decode_case(run, format, k, true);
    }
  }
}

void check_encode(Run& run, size_t format) {
  for (size_t kind = 0; kind < kValueKinds; ++kind) {
    for (size_t i = 0; i < run.draws(1, 10); ++i) {
      encode_case(run, format, run.random.one_of(kLengths), kind, false);
      encode_case(run, format, run.random.one_of(kLengths), kind, true);
    }
  }
}

void check_moves(Run& run, size_t format) {
  const Kernels& kernels = run.target.kernels()[format];
  if (!kernels.interleaves) return;
  for (size_t i = 0; i < run.draws(2, 40); ++i) {
    const size_t n = 1 + run.random.below(70),
                 k = kernels.interleaves * (1 + run.random.below(768 / kernels.interleaves));
    Layout at = kernels.layout(k, has_groups(format) ? 32 : 0);
    if (!can_interleave(kernels, at, k)) return;
    at.interleaved = true;
    const Bytes rows = random_bytes(run.random, n * at.row_bytes);
    for (const bool back : {false, true}) move_case(run, {&kernels, at, nullptr, n, k}, rows, back, run.edge());
  }
}

}  // namespace fewbit::selftest
