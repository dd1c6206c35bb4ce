// Recurrent layers: two sequences, one with a single token, in slots of their own.
#include <vector>

#include "recurrent.h"
#include "selftest/compare.h"
#include "selftest/run.h"
#include "selftest/samples.h"

namespace fewbit::selftest {
namespace {

constexpr int64_t kStarts[] = {0, 5, 6}, kLengths[] = {9, 3};
constexpr int32_t kReads[] = {1, 1}, kWrites[] = {0, 2};
constexpr size_t kRows = 6, kSlots = 3;

// Calls f(recurrence, states, out) with a target and with scalar, and compares results and states.
template <class Fn>
void compare(Run& run, size_t state, size_t width, Fn&& f) {
  const Edge edge = run.edge();
  const Floats before = normals(run.random, kSlots * state);
  const Guarded<float> states(before, edge), out(kRows * width, edge);
  Floats expected_states = before, expected(kRows * width);
  const Sequences sequences{kLengths, kStarts, 2};
  f(Recurrence{sequences, kReads, kWrites, run.threads()}, states.data(), out.data());
  {
    const Using scalar(run.scalar);
    f(Recurrence{sequences, kReads, kWrites, 1}, expected_states.data(), expected.data());
  }
  double error = 0;
  for (size_t i = 0; i < expected.size(); ++i) error = worse(error, std::fabs(out[i] - expected[i]));
  for (size_t i = 0; i < before.size(); ++i) error = worse(error, std::fabs(states[i] - expected_states[i]));
  const double top = 1 + worse(largest(expected), largest(expected_states));
  run.expect(error < 1e-5 * top && out.intact() && states.intact(), "error %g of %g", error, top);
}

StatePart part(float* states, size_t state) { return {reinterpret_cast<uint8_t*>(states), state * sizeof(float), 0}; }

}  // namespace

void check_conv(Run& run) {
  for (size_t i = 0; i < run.draws(4, 60); ++i) {
    Random& random = run.random;
    const size_t columns = 1 + random.below(90), taps = 1 + random.below(7);
    const bool silu = random.below(2), biased = random.below(2);
    run.at("%zu columns, %zu taps%s%s", columns, taps, silu ? ", silu" : "", biased ? ", bias" : "");
    const Guarded<float> x(normals(random, kRows * columns), run.edge()),
        w(normals(random, taps * columns), run.edge());
    const Guarded<float> bias(normals(random, columns), run.edge());
    const size_t state = columns * (taps - 1);
    compare(run, state, columns, [&](const Recurrence& of, float* states, float* out) {
      const float* b = biased ? bias.data() : nullptr;
      conv({part(states, state), w.data(), b, columns, taps, silu}, of, x.data(), out);
    });
  }
}

void check_delta_rule(Run& run) {
  for (size_t i = 0; i < run.draws(4, 60); ++i) {
    Random& random = run.random;
    const size_t heads = 1 + random.below(2), v_heads = heads * (1 + random.below(3));
    const size_t dim = 1 + random.below(40), v_dim = 1 + random.below(150);
    const bool tiled = random.below(2);
    run.at("%zu and %zu heads, %zu x %zu%s", heads, v_heads, dim, v_dim, tiled ? ", tiled" : "");
    const Guarded<float> q(normals(random, kRows * heads * dim), run.edge()),
        v(normals(random, kRows * v_heads * v_dim), run.edge()),
        gates(normals(random, 2 * kRows * v_heads), run.edge());
    Floats keys = normals(random, kRows * heads * dim), decay(v_heads, -0.5f), bias = normals(random, v_heads);
    for (float& k : keys) k /= static_cast<float>(dim);
    const Guarded<float> k(keys, run.edge());
    const size_t state = v_heads * dim * v_dim;
    compare(run, state, v_heads * v_dim, [&](const Recurrence& of, float* states, float* out) {
      const DeltaRule op{part(states, state), heads, v_heads, dim, v_dim, decay.data(), bias.data(), 0.25f, tiled};
      delta_rule(op, of, q.data(), k.data(), v.data(), gates.data(), gates.data() + kRows * v_heads, out);
    });
  }
}

void check_scan(Run& run) {
  for (size_t i = 0; i < run.draws(4, 60); ++i) {
    Random& random = run.random;
    const size_t groups = 1 + random.below(2), heads = groups * (1 + random.below(3));
    const size_t dim = 1 + random.below(150), state_dim = 1 + random.below(40);
    run.at("%zu heads, %zu groups, %zu x %zu", heads, groups, state_dim, dim);
    const Guarded<float> x(normals(random, kRows * heads * dim), run.edge()),
        b(normals(random, kRows * groups * state_dim), run.edge()),
        c(normals(random, kRows * groups * state_dim), run.edge()), dt(normals(random, kRows * heads), run.edge());
    const Floats decay(heads, -0.5f), skip = normals(random, heads), bias = normals(random, heads);
    const size_t state = heads * dim * state_dim;
    compare(run, state, heads * dim, [&](const Recurrence& of, float* states, float* out) {
      const Scan op{part(states, state), heads, groups, dim, state_dim, decay.data(), skip.data(), bias.data()};
      scan(op, of, x.data(), dt.data(), b.data(), c.data(), out);
    });
  }
}

}  // namespace fewbit::selftest
