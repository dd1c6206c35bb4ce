// Routed experts: rows are sorted by expert, and the matrices of each expert are read once.
#include "experts.h"

#include <algorithm>
#include <vector>

#include "threads.h"
#include "workspace.h"

namespace fewbit {
namespace {

constexpr size_t kBatchRows = 32;  // of experts whose products are made together, unless one alone has more
constexpr size_t kWorth = 16384;   // values that are worth a piece of work

size_t rows_worth(size_t width) { return kWorth / (width + 1) + 1; }

struct Assigned {  // a row that an expert gets
  uint32_t row;
  float weight;
};
struct Share {  // an expert and the rows that it gets, of those sorted by expert
  size_t expert, begin, end;
};

// Of the caller, kept.
thread_local ThreadWorkspace chosen, weights, gathered, hidden, gates, results;
thread_local std::vector<Assigned> assigned;
thread_local std::vector<size_t> starts;
thread_local std::vector<Share> shares;
thread_local std::vector<Product> products;
thread_local std::vector<Group> groups;

Matrix matrix_of(const Expert& e, size_t expert) {
  Matrix out = e.of_one;
  out.data += expert * out.n * out.at.row_bytes;
  return out;
}
const float* bias_of(const Expert& e, size_t expert) { return e.bias ? e.bias + expert * e.of_one.n : nullptr; }
size_t bytes_of(const Expert& e) { return e.of_one.n * e.of_one.at.row_bytes; }

// One call: rows (rows, k) to `out`.
struct Call {
  const Experts& experts;
  const float* x;
  size_t rows;
  bool alone;
  float* out;
  Activations activations;
  int threads;

  size_t k() const { return experts.up.of_one.k; }
  size_t n() const { return experts.up.of_one.n; }

  void assign(const float* scores) const {
    const size_t count = experts.routing.count, top_k = experts.routing.top_k;
    auto* own = chosen.get<uint32_t>(rows * top_k);
    float* own_weights = weights.get<float>(rows * top_k);
    parallel_for(rows, rows_worth(64 * count), threads, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        route(experts.routing, scores + r * count, own + r * top_k, own_weights + r * top_k);
      }
    });
    sort(own, own_weights);
  }
  // By expert, and for each expert by row.
  void sort(const uint32_t* own, const float* own_weights) const {
    const size_t count = experts.routing.count, all = rows * experts.routing.top_k;
    starts.assign(count + 1, 0);
    for (size_t i = 0; i < all; ++i) ++starts[own[i] + 1];
    shares.clear();
    for (size_t e = 0; e < count; ++e) {
      starts[e + 1] += starts[e];
      for (size_t at = starts[e]; at < starts[e + 1]; at += kMostRows) {
        shares.push_back({e, at, std::min(at + kMostRows, starts[e + 1])});
      }
    }
    assigned.resize(all);
    for (size_t i = 0; i < all; ++i) {
      assigned[starts[own[i]]++] = {static_cast<uint32_t>(i / experts.routing.top_k), own_weights[i]};
    }
  }

  // The products of some experts, each with rows of its own; their results are added to `out`.
  void run(const Share* first, const Share* last) const {
    const size_t begin = first->begin, count = last[-1].end - begin;
    float* h = hidden.get<float>(count * n());
    if (fuses())
      make_gated(first, last, h);
    else
      make_hidden(first, last, h);
    float* y = results.get<float>(count * k());
    groups.clear();
    products.clear();
    for (const Share* s = first; s != last; ++s) {
      const size_t at = s->begin - begin;
      products.push_back({matrix_of(experts.down, s->expert), y + at * k(), bias_of(experts.down, s->expert)});
      groups.push_back({inputs(h + at * n(), s->end - s->begin, n()), 1});
    }
    multiply(groups, products, activations, threads);
    add_up(begin, count, y);
  }
  // Whether kernels can gate a product.
  bool fuses() const {
    return experts.gated && experts.kind <= GateKind::relu && !experts.gate.bias && !experts.up.bias;
  }
  void make_gated(const Share* first, const Share* last, float* h) const {
    products.clear();
    for (const Share* s = first; s != last; ++s) {
      Product p{matrix_of(experts.up, s->expert), h + (s->begin - first->begin) * n()};
      p.gate = matrix_of(experts.gate, s->expert);
      p.kind = static_cast<Gate>(experts.kind);
      products.push_back(p);
    }
    multiply_inputs(first, last, 1);
  }
  void make_hidden(const Share* first, const Share* last, float* h) const {
    const size_t begin = first->begin, count = last[-1].end - begin;
    float* g = experts.gated ? gates.get<float>(count * n()) : nullptr;
    products.clear();
    for (const Share* s = first; s != last; ++s) {
      const size_t at = (s->begin - begin) * n();
      products.push_back({matrix_of(experts.up, s->expert), h + at, bias_of(experts.up, s->expert)});
      if (g) products.push_back({matrix_of(experts.gate, s->expert), g + at, bias_of(experts.gate, s->expert)});
    }
    multiply_inputs(first, last, g ? 2 : 1);
    parallel_for(count, rows_worth(n()), threads, [&](size_t from, size_t to) {
      for (size_t r = from; r < to; ++r) {
        float* own = h + r * n();
        if (g)
          gate_row(experts.kind, g + r * n(), own, n(), own);
        else
          map_row(experts.activation, own, n(), 1, nullptr, own);
      }
    });
  }
  // `each` products of every expert, with the rows that it gets. All experts of a single row take the same inputs.
  void multiply_inputs(const Share* first, const Share* last, size_t each) const {
    groups.clear();
    if (rows == 1) {
      groups.push_back({inputs(x, 1, k()), products.size()});
      return multiply(groups, products, activations, threads);
    }
    const size_t begin = first->begin, count = last[-1].end - begin;
    float* own = gathered.get<float>(count * k());
    const Assigned* of = assigned.data() + begin;  // of this thread: others have their own
    parallel_for(count, rows_worth(k()), threads, [&](size_t from, size_t to) {
      for (size_t r = from; r < to; ++r) std::copy_n(x + of[r].row * k(), k(), own + r * k());
    });
    for (const Share* s = first; s != last; ++s) {
      groups.push_back({inputs(own + (s->begin - begin) * k(), s->end - s->begin, k()), each});
    }
    multiply(groups, products, activations, threads);
  }
  Inputs inputs(const float* from, size_t count, size_t width) const {
    Inputs out{count, width, from};
    out.alone = alone;
    return out;
  }
  // By columns, so that the rows of a token are added in the order of its experts.
  void add_up(size_t begin, size_t count, const float* y) const {
    const Assigned* of = assigned.data() + begin;
    parallel_for(k(), std::max<size_t>(rows_worth(count), 64), threads, [&](size_t from, size_t to) {
      for (size_t r = 0; r < count; ++r) {
        const float *own = y + r * k(), weight = of[r].weight;
        float* sum = out + of[r].row * k();
        for (size_t c = from; c < to; ++c) sum[c] += weight * own[c];
      }
    });
  }
};

}  // namespace

size_t run_experts(const Experts& experts, const float* x, const float* scores, size_t rows, bool alone, float* out,
                   Activations activations, int threads) {
  if (rows == 0) return 0;
  const Call call{experts, x, rows, alone, out, activations, threads};
  std::fill_n(out, rows * call.k(), 0.0f);
  call.assign(scores);
  for (const Share *first = shares.data(), *end = first + shares.size(); first != end;) {
    const Share* last = first + 1;
    while (last != end && last->end - first->begin <= kBatchRows) ++last;
    call.run(first, last);
    first = last;
  }
  const size_t each = bytes_of(experts.up) + bytes_of(experts.down) + (experts.gated ? bytes_of(experts.gate) : 0);
  return shares.size() * each;
}

}  // namespace fewbit
