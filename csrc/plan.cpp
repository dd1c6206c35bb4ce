// Runs a plan: one operation after another, on all threads.
#include "plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "logits.h"
#include "threads.h"

namespace fewbit {
namespace {

constexpr size_t kWorth = 16384;                 // values that are worth a piece of work
constexpr size_t kMostKept = size_t{256} << 20;  // bytes that a plan keeps between its runs
constexpr size_t kPartRows = 256;                // of an operation that is done in parts, at most
constexpr size_t kWhole = ~size_t{0};            // the number of a part that is all of them

size_t rows_worth(size_t width) { return kWorth / (width + 1) + 1; }

Matrix matrix(const plan::Weight& w) { return {&current_target().kernels()[w.format], w.at, w.data, w.n, w.k}; }

Store store(size_t format, Store of) {
  of.kernels = &current_target().kernels()[format];
  return of;
}

}  // namespace

plan::Buffer Plan::buffer(size_t width, bool logits_only, size_t slot) {
  buffers_.push_back({width, logits_only, slot});
  while (slots_.size() <= slot) slots_.emplace_back();
  return buffers_.size() - 1;
}

size_t Plan::rope(Rope rope) {
  ropes_.push_back(std::move(rope));
  return ropes_.size() - 1;
}

void Plan::set_page_tokens(size_t group, size_t page_tokens) {
  if (group >= page_tokens_.size()) page_tokens_.resize(group + 1);
  page_tokens_[group] = page_tokens;
}

void Plan::profile(bool on) {
  profiling_ = on;
  if (on) seconds_.assign(ops_.size(), 0);
}

std::vector<std::pair<std::string, double>> Plan::seconds() const {
  static const char* const names[] = {"embed",   "linear", "gated",        "rope",          "attend",     "norm",
                                      "add",     "gate",   "gather",       "layer_norm",    "map",        "positions",
                                      "columns", "join",   "linear_heads", "experts",       "conv",       "delta_rule",
                                      "scan",    "given",  "low_rank",     "low_rank_rows", "collective", "insert"};
  static_assert(std::size(names) == std::variant_size_v<plan::Op>);
  std::vector<std::pair<std::string, double>> out;
  for (size_t i = 0; i < seconds_.size(); ++i) out.emplace_back(names[ops_[i].index()], seconds_[i]);
  return out;
}

// One run: each operation as a call.
struct Plan::Run {
  Plan& plan;
  const Step& step;
  Activations activations;
  int threads;
  size_t first = 0, end = ~size_t{0};  // of the rows, for operations that `num_parts` says are done in parts

  float* at(plan::Buffer b) const { return plan.buffers_[b].data + first * width(b); }
  size_t all_rows(plan::Buffer b) const { return plan.buffers_[b].logits_only ? step.logits_count : step.count; }
  size_t rows(plan::Buffer b) const { return std::min(all_rows(b), end) - first; }
  size_t width(plan::Buffer b) const { return plan.buffers_[b].width; }

  template <class Fn>
  void each_row(plan::Buffer b, Fn&& f) const {
    parallel_for(rows(b), rows_worth(width(b)), threads, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) f(r);
    });
  }
  Inputs inputs(plan::Buffer in, const plan::RowNorm& norm) const {
    Inputs out{rows(in), width(in), at(in)};
    out.alone = plan.batch_invariant_;
    if (norm.weight) out.norm = {norm.weight, norm.eps, plan.normed_.get<float>(rows(in) * width(in))};
    return out;
  }

  void operator()(const plan::Embed& op) const {
    const Matrix w = matrix(op.w);
    each_row(op.out, [&](size_t r) {
      float* to = at(op.out) + r * w.k;
      w.kernels->decode(w.data + static_cast<size_t>(step.tokens[r]) * w.at.row_bytes, w.k, w.at, to);
      if (op.scale != 1) current_target().rows.scale(to, w.k, op.scale, to);
    });
  }
  void operator()(const plan::Linear& op) const {
    thread_local std::vector<Product> products;  // kept
    products.clear();
    for (const plan::Term& t : op.terms) {
      products.push_back({matrix(t.w), at(t.out), t.bias, t.adds ? at(t.residual) : nullptr});
    }
    const Activations own = std::max(activations, op.at_least);
    const Inputs in = inputs(op.in, op.norm);
    if (own == Activations::int16 && op.norms && step.tops &&
        multiply_largest(products[0].w, op.norms, in, step.tops, products[0].out, threads)) {
      return;
    }
    multiply(products, in, own, threads);
  }
  void operator()(const plan::Gated& op) const {
    multiply_gated(matrix(op.gate), matrix(op.up), op.kind, inputs(op.in, op.norm), at(op.out), activations, threads);
  }
  void operator()(const plan::ApplyRope& op) const {
    const Rope& rope = plan.ropes_[op.rope];
    const size_t pairs = rope.inv_freq.size();
    const float* angles = plan.angles_[op.rope].get<float>(step.count * 2 * pairs);
    each_row(op.out, [&](size_t r) {
      const size_t n = op.heads * op.dim;
      const float* own = angles + r * 2 * pairs;
      if (op.in != op.out) std::copy_n(at(op.in) + r * n, n, at(op.out) + r * n);
      current_target().rows.rope(at(op.out) + r * n, op.heads, op.dim, own, own + pairs, pairs, rope.neox);
    });
  }
  void operator()(const plan::Attend& op) const {
    const Store k = store(op.k_format, op.k_store), v = store(op.v_format, op.v_store);
    const Run whole{plan, step, activations, threads};
    const Fresh fresh{whole.at(op.k), whole.at(op.v), plan.kv_slots_[op.group].data()};
    Logits logits = op.logits;
    if (op.spans) logits.spans = plan.spans_.data();
    attend(k, v, op.heads, step.sequences, step.groups[op.group], logits, whole.at(op.q), op.q_heads,
           op.keep ? &fresh : nullptr, whole.at(op.out), activations == Activations::exact, plan.batch_invariant_,
           threads, {first, end});
  }
  void operator()(const plan::Norm& op) const {
    const size_t n = width(op.in) / op.heads;
    each_row(op.in, [&](size_t r) {
      for (size_t h = r * op.heads; h < (r + 1) * op.heads; ++h) {
        current_target().rows.norm(at(op.in) + h * n, n, op.norm.weight, op.norm.eps, at(op.out) + h * n);
      }
    });
  }
  void operator()(const plan::Add& op) const {
    const size_t n = width(op.out);
    each_row(op.out, [&](size_t r) {
      for (size_t i = r * n; i < (r + 1) * n; ++i) at(op.out)[i] = at(op.a)[i] + at(op.b)[i];
    });
  }
  void operator()(const plan::GateOf& op) const {
    const size_t n = width(op.out);
    each_row(op.out, [&](size_t r) { gate_row(op.kind, at(op.a) + r * n, at(op.b) + r * n, n, at(op.out) + r * n); });
  }
  void operator()(const plan::LayerNorm& op) const {
    const size_t n = width(op.in);
    each_row(op.in,
             [&](size_t r) { layer_norm_row(at(op.in) + r * n, n, op.weight, op.bias, op.eps, at(op.out) + r * n); });
  }
  void operator()(const plan::Mapped& op) const {
    const size_t n = width(op.in);
    each_row(op.in, [&](size_t r) { map_row(op.map, at(op.in) + r * n, n, op.by, op.vector, at(op.out) + r * n); });
  }
  void operator()(const plan::Positions& op) const {
    const Matrix w = matrix(op.w);
    each_row(op.out, [&](size_t r) {
      const auto row = static_cast<size_t>(plan.positions_[r]);
      w.kernels->decode(w.data + row * w.at.row_bytes, w.k, w.at, at(op.out) + r * w.k);
    });
  }
  void operator()(const plan::Columns& op) const {
    const size_t dim = width(op.in) / op.heads;
    each_row(op.out, [&](size_t r) {
      for (size_t h = r * op.heads; h < (r + 1) * op.heads; ++h) {
        std::copy_n(at(op.in) + h * dim + op.start, op.width, at(op.out) + h * op.width);
      }
    });
  }
  void operator()(const plan::Join& op) const {
    const size_t a = width(op.a) / op.heads, b = width(op.b) / op.b_heads;
    each_row(op.out, [&](size_t r) {
      float* to = at(op.out) + r * width(op.out);
      for (size_t h = 0; h < op.heads; ++h) {
        to = std::copy_n(at(op.a) + (r * op.heads + h) * a, a, to);
        to = std::copy_n(at(op.b) + (r * op.b_heads + h % op.b_heads) * b, b, to);
      }
    });
  }
  // A thread takes whole heads: their matrices are small.
  void operator()(const plan::RoutedExperts& op) const {
    const auto of = [](const plan::ExpertWeight& e) { return Expert{matrix(e.w), e.bias}; };
    const Experts experts{op.routing, op.gated,   op.kind, op.activation, op.gated ? of(op.gate) : Expert{},
                          of(op.up),  of(op.down)};
    plan.expert_bytes_ += run_experts(experts, at(op.x), at(op.scores), rows(op.x), plan.batch_invariant_, at(op.out),
                                      activations, threads);
  }
  void operator()(const plan::LinearHeads& op) const {
    const size_t m = rows(op.in), heads = op.heads.size(), in_width = width(op.in), out_width = width(op.out);
    parallel_for(heads, 1, threads, [&](size_t begin, size_t end) {
      thread_local ThreadWorkspace head_rows;
      for (size_t h = begin; h < end; ++h) {
        const Matrix w = matrix(op.heads[h]);
        float *x = head_rows.get<float>(m * (w.k + w.n)), *y = x + m * w.k;
        for (size_t r = 0; r < m; ++r) std::copy_n(at(op.in) + r * in_width + h * w.k, w.k, x + r * w.k);
        const Product product{w, y};
        Inputs in{m, w.k, x};
        in.alone = plan.batch_invariant_;
        multiply({&product, 1}, in, activations, 1);
        for (size_t r = 0; r < m; ++r) std::copy_n(y + r * w.n, w.n, at(op.out) + r * out_width + h * w.n);
      }
    });
  }
  void operator()(const plan::LowRank& op) const {
    std::vector<LowRankOutput>& outputs = plan.low_rank_.outputs();
    for (const auto& [product, out] : op.products) outputs.push_back({product, width(out), at(out)});
    plan.low_rank_.add(outputs, at(op.in), width(op.in), plan.buffers_[op.in].logits_only, step.adapters, threads);
  }
  void operator()(const plan::LowRankRows& op) const {
    plan.low_rank_.add_rows({op.product, width(op.out), at(op.out)}, step.tokens, step.adapters, threads);
  }
  Recurrence recurrence() const { return {step.sequences, step.reads, step.writes, threads}; }
  void operator()(const plan::ConvRows& op) const { conv(op.conv, recurrence(), at(op.in), at(op.out)); }
  void operator()(const plan::DeltaRows& op) const {
    delta_rule(op.rule, recurrence(), at(op.q), at(op.k), at(op.v), at(op.a), at(op.b), at(op.out));
  }
  void operator()(const plan::ScanRows& op) const {
    scan(op.scan, recurrence(), at(op.x), at(op.dt), at(op.b), at(op.c), at(op.out));
  }
  void operator()(const plan::Gather& op) const {
    const size_t n = width(op.in);
    each_row(op.out, [&](size_t r) {
      std::copy_n(at(op.in) + static_cast<size_t>(step.logits_indices[r]) * n, n, at(op.out) + r * n);
    });
  }
  void operator()(const plan::Collective& op) const {
    const size_t count = rows(op.in), n = width(op.in);
    if (op.first) {
      op.group->all_gather(op.rank, at(op.in), count, n, *op.first, width(op.out), at(op.out));
    } else {
      op.group->all_reduce(op.rank, at(op.in), count * n, at(op.out));
    }
  }
  void operator()(const plan::Given& op) const { std::copy_n(step.given, rows(op.out) * width(op.out), at(op.out)); }

  void operator()(const plan::Insert& op) const {
    const size_t n = width(op.out);
    if (op.in != op.out) std::copy_n(at(op.in), rows(op.in) * n, at(op.out));
    if (!step.inserted) return;
    const Inserted& part = step.inserted[op.part];
    for (size_t i = 0; i < part.count; ++i) {
      float* to = at(op.out) + static_cast<size_t>(part.tokens[i]) * n;
      const float* from = part.rows + i * n;
      for (size_t j = 0; j < n; ++j) to[j] = op.adds ? to[j] + from[j] : from[j];
    }
  }

  // Operations that take long are done in parts of their rows; others have none.
  size_t parted_rows(const plan::Op& op) const {
    if (const auto* one = std::get_if<plan::Linear>(&op)) return one->norms && step.tops ? 0 : all_rows(one->in);
    if (const auto* one = std::get_if<plan::Gated>(&op)) return all_rows(one->in);
    if (const auto* one = std::get_if<plan::Attend>(&op)) return all_rows(one->q);
    return 0;
  }
  size_t num_parts(const plan::Op& op) const {
    const size_t count = parted_rows(op);
    return count < 2 * kPartRows ? 1 : (count + kPartRows - 1) / kPartRows;
  }
  Run part(const plan::Op& op, size_t number) const {
    const size_t parts = num_parts(op), count = parted_rows(op);
    if (number == kWhole || parts == 1) return *this;
    return {plan, step, activations, threads, count * number / parts, count * (number + 1) / parts};
  }

  // Where each token stands, and where its K and V go.
  void find_positions() const {
    const Sequences& s = step.sequences;
    plan.positions_.clear();
    for (size_t i = 0; i < s.count; ++i) {
      for (int64_t p = s.lengths[i] - (s.q_starts[i + 1] - s.q_starts[i]); p < s.lengths[i]; ++p) {
        plan.positions_.push_back(p);
      }
    }
  }
  void find_spans() const {
    plan.spans_.clear();
    for (size_t r = 0; r < step.count; ++r) {
      const int64_t own = plan.positions_[r];
      plan.spans_.push_back(step.spans ? step.spans[r] : Span{own, own + 1});
    }
  }
  void find_slots(size_t group) const {
    const Sequences& s = step.sequences;
    const PageTables& tables = step.groups[group];
    const auto size = static_cast<int64_t>(plan.page_tokens_[group]);
    std::vector<int64_t>& out = plan.kv_slots_[group];
    out.clear();
    for (size_t i = 0; i < s.count; ++i) {
      for (int64_t r = s.q_starts[i]; r < s.q_starts[i + 1]; ++r) {
        const int64_t p = plan.positions_[static_cast<size_t>(r)];
        out.push_back(tables.pages[tables.starts[i] + p / size] * size + p % size);
      }
    }
  }
  void angles(size_t i) const {
    const Rope& rope = plan.ropes_[i];
    const size_t pairs = rope.inv_freq.size();
    float* out = plan.angles_[i].get<float>(step.count * 2 * pairs);
    parallel_for(step.count, 1024 / (pairs + 1) + 1, threads, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        for (size_t j = 0; j < pairs; ++j) {
          const bool own = rope.axes.empty() || !step.axes;
          const auto at = own ? static_cast<double>(plan.positions_[r])
                              : static_cast<double>(step.axes[rope.axes[j] * step.count + r]);
          const double angle = at * rope.inv_freq[j];
          out[r * 2 * pairs + j] = rope.scale * static_cast<float>(std::cos(angle));
          out[r * 2 * pairs + pairs + j] = rope.scale * static_cast<float>(std::sin(angle));
        }
      }
    });
  }
};

void Plan::find_memory(const Step& step) {
  slot_sizes_.assign(slots_.size(), 0);
  for (const Rows& b : buffers_) {
    const size_t rows = b.logits_only ? step.logits_count : step.count;
    slot_sizes_[b.slot] = std::max(slot_sizes_[b.slot], rows * b.width);
  }
  slot_sizes_[buffers_[result_].slot] = 0;
  for (Rows& b : buffers_) b.data = slots_[b.slot].get<float>(slot_sizes_[b.slot]);
}

void Plan::begin(const Run& run, float* result) {
  place_ = {};
  find_memory(run.step);
  buffers_[result_].data = result;
  angles_.resize(ropes_.size());
  run.find_positions();
  run.find_spans();
  for (size_t i = 0; i < ropes_.size(); ++i) run.angles(i);
  kv_slots_.resize(page_tokens_.size());
  for (size_t g = 0; g < page_tokens_.size(); ++g) {
    if (page_tokens_[g]) run.find_slots(g);
  }
}

void Plan::run_part(const Run& run, size_t op, size_t part) {
  const auto start = profiling_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
  std::visit(run.part(ops_[op], part), ops_[op]);
  if (profiling_) {
    seconds_[op] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

void Plan::run(const Step& step, float* result, Activations activations, int threads) {
  const Run run{*this, step, activations, threads};
  begin(run, result);
  for (size_t i = 0; i < ops_.size(); ++i) run_part(run, i, kWhole);
  trim();
}

bool Plan::run_slice(const Step& step, float* result, Activations activations, int threads, bool resumes,
                     double seconds) {
  const Run run{*this, step, activations, threads};
  const auto start = std::chrono::steady_clock::now();
  if (!resumes) {
    begin(run, result);
    place_ = {0, 0, step.count, step.logits_count};
  } else if (place_.rows != step.count || place_.logits != step.logits_count || step.count == 0) {
    throw std::invalid_argument("this is not the step whose slices were run before");
  }
  buffers_[result_].data = result;
  Place next = place_;
  place_ = {};  // if something fails, the step is over
  while (next.op < ops_.size()) {
    run_part(run, next.op, next.part);
    if (++next.part == run.num_parts(ops_[next.op])) next = {next.op + 1, 0, next.rows, next.logits};
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) break;
  }
  if (next.op < ops_.size()) {
    place_ = next;
    return false;
  }
  trim();
  return true;
}

// What an unusually long step needed goes back to the system.
void Plan::trim() {
  size_t kept = normed_.capacity() + low_rank_.capacity();
  for (const auto* all : {&slots_, &angles_}) {
    for (const Workspace& w : *all) kept += w.capacity();
  }
  if (kept <= kMostKept) return;
  normed_.release();
  low_rank_.release();
  for (auto* all : {&slots_, &angles_}) {
    for (Workspace& w : *all) w.release();
  }
}

}  // namespace fewbit
