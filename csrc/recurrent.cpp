// Recurrent layers: which head of which sequence is whose piece of work.
#include "recurrent.h"

#include <algorithm>
#include <cmath>

#include "dispatch.h"
#include "recurrent_kernels.h"
#include "row_maths.h"
#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr size_t kColumns = 64;  // of a state, for one thread
constexpr size_t kGates = 256;   // of heads, for one thread

thread_local ThreadWorkspace gates;  // of the caller

const RecurrentKernels& kernels() { return current_target().rows.recurrent; }

struct Tokens {  // of a sequence
  size_t first, count;
};
Tokens tokens_of(const Recurrence& of, size_t s) {
  const int64_t* starts = of.sequences.q_starts;
  return {static_cast<size_t>(starts[s]), static_cast<size_t>(starts[s + 1] - starts[s])};
}
size_t rows_of(const Recurrence& of) { return static_cast<size_t>(of.sequences.q_starts[of.sequences.count]); }

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

struct Gates {  // of a head for a token
  double fade, other;
};

// Two numbers for each row and head, one array after the other: what f gives for row and head.
template <class Fn>
const float* gates_of(const Recurrence& of, size_t heads, Fn&& f) {
  const size_t count = rows_of(of) * heads;
  float* out = gates.get<float>(2 * count);
  parallel_for(count, kGates, of.threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Gates own = f(i, i % heads);
      out[i] = static_cast<float>(own.fade);
      out[count + i] = static_cast<float>(own.other);
    }
  });
  return out;
}

// f(sequence, head, begin, end) for all heads of all sequences, `size` values cut into pieces.
template <class Fn>
void each_head(const Recurrence& of, size_t heads, size_t size, Fn&& f) {
  const size_t pieces = (size + kColumns - 1) / kColumns;
  parallel_for(of.sequences.count * heads * pieces, 1, of.threads, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const size_t begin = i % pieces * kColumns, head = i / pieces;
      f(head / heads, head % heads, begin, std::min(begin + kColumns, size));
    }
  });
}

// Row `back` rows before the one after the last: of the tokens, or before them of the state.
const float* row_before(const Conv& op, const float* x, size_t count, const float* state, size_t back) {
  return back <= count ? x + (count - back) * op.columns : state + (op.taps - 1 - (back - count)) * op.columns;
}

void conv_row(const Conv& op, const float* x, size_t token, const float* state, float* out) {
  const float* rows[kMaxTaps];
  for (size_t tap = 0; tap < op.taps; ++tap) rows[tap] = row_before(op, x, token + 1, state, op.taps - tap);
  kernels().conv(rows, op.taps, op.weight, op.columns, op.bias, op.columns, out);
  if (op.silu) map_row(Map::silu, out, op.columns, 1, nullptr, out);
}

// A head of a state, with or without new tokens.
void run_head(void (*kernel)(const StateHead&, size_t, size_t), const StateHead& head, size_t begin, size_t end) {
  if (head.tokens > 0) return kernel(head, begin, end);
  for (size_t i = 0; i < head.dim; ++i) {
    std::copy(head.from + i * head.v_dim + begin, head.from + i * head.v_dim + end, head.to + i * head.v_dim + begin);
  }
}

}  // namespace

void conv(const Conv& op, const Recurrence& of, const float* x, float* out) {
  const int64_t* starts = of.sequences.q_starts;
  const size_t grain = 16384 / (op.columns * op.taps + 1) + 1;
  parallel_for(rows_of(of), grain, of.threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const auto* after = std::upper_bound(starts, starts + of.sequences.count + 1, static_cast<int64_t>(r));
      const auto s = static_cast<size_t>(after - starts) - 1;
      const size_t first = tokens_of(of, s).first;
      conv_row(op, x + first * op.columns, r - first, op.state.at(of.reads[s]), out + r * op.columns);
    }
  });
  parallel_for(of.sequences.count, 1, of.threads, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) {
      const Tokens own = tokens_of(of, s);
      float* to = op.state.at(of.writes[s]);
      for (size_t back = op.taps - 1; back > 0; --back) {
        const float* row = row_before(op, x + own.first * op.columns, own.count, op.state.at(of.reads[s]), back);
        to = std::copy_n(row, op.columns, to);
      }
    }
  });
}

void delta_rule(const DeltaRule& op, const Recurrence& of, const float* q, const float* k, const float* v,
                const float* a, const float* b, float* out) {
  const float* fades = gates_of(of, op.v_heads, [&](size_t i, size_t h) {
    const double fade = std::exp(op.decay[h] * softplus(static_cast<double>(a[i]) + op.dt_bias[h]));
    return Gates{fade, 1 / (1 + std::exp(-static_cast<double>(b[i])))};
  });
  const float* learns = fades + rows_of(of) * op.v_heads;
  const size_t q_stride = op.heads * op.dim, v_stride = op.v_heads * op.v_dim;
  each_head(of, op.v_heads, op.v_dim, [&](size_t s, size_t h, size_t begin, size_t end) {
    const Tokens own = tokens_of(of, s);
    const size_t q_head = op.tiled ? h % op.heads : h / (op.v_heads / op.heads);
    const size_t q_at = own.first * q_stride + q_head * op.dim, v_at = own.first * v_stride + h * op.v_dim;
    const size_t gate_at = own.first * op.v_heads + h, state_at = h * op.dim * op.v_dim;
    const float* from = op.state.at(of.reads[s]) + state_at;
    float* to = op.state.at(of.writes[s]) + state_at;
    run_head(kernels().delta_rule,
             {own.count, op.dim, op.v_dim, k + q_at, q + q_at, v + v_at, fades + gate_at, learns + gate_at, q_stride,
              v_stride, op.v_heads, op.scale, from, to, out + v_at},
             begin, end);
  });
}

void scan(const Scan& op, const Recurrence& of, const float* x, const float* dt, const float* b, const float* c,
          float* out) {
  const float* fades = gates_of(of, op.heads, [&](size_t i, size_t h) {
    const double step = softplus(static_cast<double>(dt[i]) + op.dt_bias[h]);
    return Gates{std::exp(op.decay[h] * step), step};
  });
  const float* steps = fades + rows_of(of) * op.heads;
  const size_t x_stride = op.heads * op.dim, b_stride = op.groups * op.state_dim;
  each_head(of, op.heads, op.dim, [&](size_t s, size_t h, size_t begin, size_t end) {
    const Tokens own = tokens_of(of, s);
    const size_t x_at = own.first * x_stride + h * op.dim, gate_at = own.first * op.heads + h;
    const size_t b_at = own.first * b_stride + h / (op.heads / op.groups) * op.state_dim;
    const size_t state_at = h * op.dim * op.state_dim;
    const float* from = op.state.at(of.reads[s]) + state_at;
    float* to = op.state.at(of.writes[s]) + state_at;
    run_head(kernels().scan,
             {own.count, op.state_dim, op.dim, b + b_at, c + b_at, x + x_at, fades + gate_at, steps + gate_at, b_stride,
              x_stride, op.heads, op.skip[h], from, to, out + x_at},
             begin, end);
  });
}

}  // namespace fewbit
