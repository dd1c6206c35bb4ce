// Plans for Python: what is recorded is checked when it is recorded, what a step brings is checked at each step.
#include <cmath>
#include <mutex>

#include "bindings_collective.h"
#include "bindings_experts.h"
#include "bindings_inserts.h"
#include "bindings_low_rank.h"
#include "bindings_pages.h"
#include "bindings_recurrent.h"
#include "forked_lock.h"

namespace fewbit {
namespace {

// A plan and the arrays that it reads. Once it has its result it does not change; runs wait for each other.
class PyPlan : public CollectivePlan {
 public:
  using CollectivePlan::CollectivePlan;
  Buffer buffer(size_t width, bool logits_only, size_t slot) {
    if (width == 0 || width > kLargest) throw std::invalid_argument("a buffer has at least one column");
    expect(slot <= plan_.buffers(), "slot of a buffer", slot, plan_.buffers());
    expect_open();
    return plan_.buffer(width, logits_only, slot);
  }
  size_t rope(Row inv_freq, float scale, bool neox, std::optional<Bytes> axes) {
    Rope out{{}, scale, neox, {}};
    if (axes) {
      expect(axes->size() == inv_freq.size(), "axes of a rope", axes->size(), inv_freq.size());
      out.axes.assign(axes->data(), axes->data() + axes->size());
      for (const uint8_t axis : out.axes) inserts_.add_axis(axis);
    }
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      if (!std::isfinite(inv_freq.data()[i])) throw std::invalid_argument("frequencies must be finite");
      out.inv_freq.push_back(inv_freq.data()[i]);
    }
    expect_open();
    return plan_.rope(std::move(out));
  }
  void embed(const nb::tuple& w, Buffer out, float scale) {
    const plan::Weight table = weight(w, width(out));
    expect_rows(out, false);
    if (table.n == 0) throw std::invalid_argument("a table of embeddings has at least one row");
    if (table.at.interleaved)
      throw std::invalid_argument("a table of embeddings is read row by row: it cannot be interleaved");
    tokens_ = tokens_ ? std::min(tokens_, table.n) : table.n;
    add_op(plan::Embed{table, scale, out});
  }
  void linear(Buffer in, std::optional<Row> norm, float eps, const ActivationsName& at_least, const nb::list& terms,
              std::optional<Row> norms) {
    plan::Linear op{in, norm_of(norm, eps, width(in)), activations_named(at_least), {}};
    for (const nb::handle& term : terms) {
      const auto t = nb::cast<nb::tuple>(term);  // matrix, out, bias, buffer that is added
      expect(t.size() == 4, "parts of a term", t.size(), 4);
      plan::Term out{weight(nb::cast<nb::tuple>(t[0]), width(in)), nb::cast<Buffer>(t[1])};
      expect(width(out.out) == out.w.n, "columns of the result", width(out.out), out.w.n);
      expect_rows(out.out, plan_.logits_only(in));
      expect(out.out != in, "a result that is not the input", out.out, in);
      if (!t[2].is_none()) out.bias = keep(nb::cast<Row>(t[2], false), out.w.n, "values of the bias");
      if (!t[3].is_none()) {
        out.adds = true;
        out.residual = nb::cast<Buffer>(t[3]);
        expect(width(out.residual) == out.w.n, "columns of the residual", width(out.residual), out.w.n);
        expect_rows(out.residual, plan_.logits_only(in));
      }
      op.terms.push_back(out);
    }
    if (norms) {
      const bool plain = op.terms.size() == 1 && !op.terms[0].bias && !op.terms[0].adds && plan_.logits_only(in);
      if (!plain)
        throw std::invalid_argument("norms are those of one product of rows of logits, without bias and residual");
      op.norms = keep(*norms, op.terms[0].w.n, "norms of rows");
    }
    add_op(std::move(op));
  }
  void gated(Buffer in, std::optional<Row> norm, float eps, const nb::tuple& gate, const nb::tuple& up,
             const std::string& kind, Buffer out) {
    const plan::Weight g = weight(gate, width(in)), u = weight(up, width(in));
    expect(g.n == u.n, "rows of up", u.n, g.n);
    expect(width(out) == g.n, "columns of the result", width(out), g.n);
    expect_rows(out, plan_.logits_only(in));
    expect(out != in, "a result that is not the input", out, in);
    add_op(plan::Gated{in, norm_of(norm, eps, width(in)), g, u, gate_named(kind), out});
  }
  void apply_rope(Buffer in, Buffer out, size_t heads, size_t dim, size_t rope) {
    expect(rope < plan_.ropes(), "number of a rope", rope, plan_.ropes());
    expect_same(in, out);
    expect(times(heads, dim) == width(in), "columns", width(in), times(heads, dim));
    expect(2 * plan_.rope_at(rope).inv_freq.size() <= dim, "values that rope rotates", dim,
           2 * plan_.rope_at(rope).inv_freq.size());
    expect_rows(in, false);
    add_op(plan::ApplyRope{in, out, heads, dim, rope});
  }
  void attend(size_t k_format, MutablePages4 k_store, size_t k_dim, size_t v_format, MutablePages4 v_store,
              size_t v_dim, size_t group, bool rotate, Buffer q, Buffer k, Buffer v, Buffer out, float scale,
              size_t window, float softcap, std::optional<Row> sinks, bool causal, size_t around, bool keep_kv,
              bool chunked, bool spans) {
    const Store keys = store_of(k_format, Pages4(k_store), k_dim, false);
    const Store values = store_of(v_format, Pages4(v_store), v_dim, true);
    expect_alike(keys, Pages4(k_store), values, Pages4(v_store));
    const Heads heads{k_store.shape(1), page_tokens(keys, Pages4(k_store)), rotate};
    const size_t k_width = times(heads.kv_heads, k_dim), v_width = times(heads.kv_heads, v_dim);
    expect(width(k) == k_width, "columns of K", width(k), k_width);
    expect(width(v) == v_width, "columns of V", width(v), v_width);
    expect(width(q) % k_width == 0, "columns of q, a multiple of those of K", width(q), k_width);
    const size_t q_heads = width(q) / k_dim;
    expect(width(out) == times(q_heads, v_dim), "columns of the result", width(out), times(q_heads, v_dim));
    for (const Buffer b : {q, k, v, out}) expect_rows(b, false);
    expect_open();
    groups_.add(group, k_store.shape(0), heads.page_tokens);
    plan_.set_page_tokens(group, heads.page_tokens);
    const float* sink = sinks ? keep(*sinks, q_heads, "sinks") : nullptr;
    keep_.push_back(k_store.owner());
    keep_.push_back(v_store.owner());
    add_op(plan::Attend{k_format, v_format, keys, values, heads, group, q_heads,
                        Logits{scale, window, softcap, sink, causal, around, chunked}, q, k, v, out, keep_kv, spans});
  }
  void norm(Buffer in, Row weight, float eps, size_t heads, Buffer out) {
    expect_same(in, out);
    add_op(plan::Norm{in, norm_of(weight, eps, head_width(in, heads)), heads, out});
  }
  void layer_norm(Buffer in, Row weight, std::optional<Row> bias, float eps, Buffer out) {
    expect_same(in, out);
    const float* w = keep(weight, width(in), "weights of the norm");
    add_op(plan::LayerNorm{in, w, bias ? keep(*bias, width(in), "values of the bias") : nullptr, eps, out});
  }
  void map(Buffer in, const std::string& kind, float by, std::optional<Row> vector, Buffer out) {
    expect_same(in, out);
    const Map map = map_named(kind);
    if ((map == Map::shift) != vector.has_value()) throw std::invalid_argument("shift alone takes a vector");
    add_op(plan::Mapped{in, map, by, vector ? keep(*vector, width(in), "values that are added") : nullptr, out});
  }
  void positions(const nb::tuple& w, Buffer out) {
    const plan::Weight table = weight(w, width(out));
    expect_rows(out, false);
    if (table.at.interleaved)
      throw std::invalid_argument("a table of positions is read row by row: it cannot be interleaved");
    positions_ = positions_ ? std::min(positions_, table.n) : table.n;
    add_op(plan::Positions{table, out});
  }
  void columns(Buffer in, size_t start, size_t width, size_t heads, Buffer out) {
    const size_t dim = head_width(in, heads);
    expect(start <= dim && width <= dim - start, "columns of a head", dim, start + width);
    expect(this->width(out) == times(heads, width), "columns of the result", this->width(out), times(heads, width));
    expect_rows(out, plan_.logits_only(in));
    expect(out != in, "a result that is not the input", out, in);
    add_op(plan::Columns{in, start, width, heads, out});
  }
  void join(Buffer a, Buffer b, size_t heads, size_t b_heads, Buffer out) {
    const size_t each = head_width(a, heads) + head_width(b, b_heads);
    expect(b_heads == 1 || b_heads == heads, "heads of b", b_heads, heads);
    expect(width(out) == times(heads, each), "columns of the result", width(out), times(heads, each));
    for (const Buffer x : {a, b}) {
      expect_rows(out, plan_.logits_only(x));
      expect(out != x, "a result that is not an input", out, x);
    }
    add_op(plan::Join{a, b, heads, b_heads, out});
  }
  void linear_heads(Buffer in, const nb::list& matrices, Buffer out) {
    plan::LinearHeads op{in, {}, out};
    const size_t k = head_width(in, matrices.size());
    for (const nb::handle& one : matrices) {
      op.heads.push_back(weight(nb::cast<nb::tuple>(one), k));
      expect(op.heads.back().n == op.heads.front().n, "rows of a head", op.heads.back().n, op.heads.front().n);
    }
    const size_t columns = times(matrices.size(), op.heads.front().n);
    expect(width(out) == columns, "columns of the result", width(out), columns);
    expect_rows(out, plan_.logits_only(in));
    expect(out != in, "a result that is not the input", out, in);
    add_op(std::move(op));
  }
  // `matrices` and `biases` are those of gate (or None), up and down.
  void experts(Buffer x, Buffer scores, const nb::tuple& matrices, const nb::tuple& biases, const std::string& kind,
               const nb::tuple& routing, Buffer out) {
    expect(matrices.size() == 3 && biases.size() == 3, "matrices and biases", matrices.size(), 3);
    expect_same(x, out);
    expect_rows(scores, plan_.logits_only(x));
    expect(out != x && out != scores, "a result that is not an input", out, x);
    plan::RoutedExperts op{
        x, scores, routing_of(routing, width(scores), keep_), !matrices[0].is_none(), {}, {}, {}, {}, {}, out};
    const size_t count = op.routing.count, k = width(x);
    op.gated ? void(op.kind = gate_kind_named(kind)) : void(op.activation = map_named(kind));
    if (!op.gated && op.activation < Map::silu) throw std::invalid_argument("experts are not activated by " + kind);
    op.up = expert_weight(weight(nb::cast<nb::tuple>(matrices[1]), k), biases[1], count, keep_);
    op.down = expert_weight(weight(nb::cast<nb::tuple>(matrices[2]), op.up.w.n), biases[2], count, keep_);
    expect(op.down.w.n == k, "rows of down", op.down.w.n, k);
    if (op.gated) {
      op.gate = expert_weight(weight(nb::cast<nb::tuple>(matrices[0]), k), biases[0], count, keep_);
      expect(op.gate.w.n == op.up.w.n, "rows of gate", op.gate.w.n, op.up.w.n);
    }
    add_op(std::move(op));
  }
  void add(Buffer a, Buffer b, Buffer out) {
    expect_same(a, out);
    expect_same(b, out);
    add_op(plan::Add{a, b, out});
  }
  void gate(Buffer a, Buffer b, const std::string& kind, Buffer out) {
    expect_same(a, out);
    expect_same(b, out);
    expect(a != out, "a result that is not the gate", a, out);
    add_op(plan::GateOf{a, b, gate_kind_named(kind), out});
  }
  void gather(Buffer in, Buffer out) {
    expect(width(in) == width(out), "columns of the result", width(out), width(in));
    expect_rows(in, false);
    expect_rows(out, true);
    add_op(plan::Gather{in, out});
  }
  void insert(Buffer in, size_t part, bool adds, Buffer out) {
    expect_same(in, out);
    expect_rows(in, false);
    inserts_.add(part, width(in));
    add_op(plan::Insert{in, part, adds, out});
  }
  // `products`: pairs of a product's number and the buffer of its result, to which terms of adapters are added.
  void low_rank(Buffer in, const nb::list& products) {
    plan::LowRank op{in, {}};
    for (const nb::handle& one : products) {
      const auto [product, out] = nb::cast<std::pair<size_t, Buffer>>(one);
      expect_rows(out, plan_.logits_only(in));
      expect(out != in, "a result that is not the input", out, in);
      uses_.add({product, width(in), width(out), false});
      op.products.emplace_back(product, out);
    }
    add_op(std::move(op));
  }
  void low_rank_rows(size_t product, size_t count, Buffer out) {
    expect_rows(out, false);
    expect(tokens_ != 0 && tokens_ <= count, "rows of the table, at least", count, tokens_);
    uses_.add({product, count, width(out), true});
    add_op(plan::LowRankRows{product, count, out});
  }
  void set_result(Buffer b) {
    expect_rows(b, true);
    for (Buffer other = 0; other < plan_.buffers(); ++other) {  // its slot has no memory of its own
      expect(other == b || plan_.slot(other) != plan_.slot(b), "slot of another buffer than the result's",
             plan_.slot(other), plan_.slot(b));
    }
    expect_open();
    plan_.set_result(b);
    ready_ = true;
  }

  bool run(Int32s tokens, const nb::list& groups, Int64s lengths, Int64s q_starts, Int32s logits_indices,
           MutableFloats out, const ActivationsName& activations, int threads, std::optional<Int32s> reads,
           std::optional<Int32s> writes, std::optional<Int32s> tops, std::optional<Array<const float, 2>> given,
           const nb::list& adapters, const nb::list& inserted, std::optional<Array<const int32_t, 2>> axes,
           std::optional<Array<const int64_t, 2>> spans, std::optional<double> seconds, bool resumes) {
    if (!ready_) throw std::invalid_argument("the plan has no result");
    expect(threads >= 1 && threads <= kMaxThreads, "threads", static_cast<size_t>(threads), kMaxThreads);
    if (tokens_) expect_below(tokens, tokens_, "token");  // else no operation reads them
    expect_below(logits_indices, tokens.size(), "row of logits");
    expect(out.shape(0) == logits_indices.size(), "rows of the result", out.shape(0), logits_indices.size());
    expect(out.shape(1) == width(plan_.result()), "columns of the result", out.shape(1), width(plan_.result()));
    expect_lengths(lengths, q_starts, tokens.size());
    for (size_t i = 0; positions_ && i < lengths.size(); ++i) {
      const auto length = static_cast<size_t>(lengths.data()[i]);
      expect(length <= positions_, "positions, at most", length, positions_);
    }
    const Sequences sequences{lengths.data(), q_starts.data(), lengths.size()};
    const nb::tuple held(groups);  // so that nobody takes the arrays away while it runs
    const std::vector<PageTables> tables = groups_.tables(held, lengths);
    slots_.check(reads, writes, lengths.size());
    if (tops) expect(tops->size() == logits_indices.size(), "rows of tops", tops->size(), logits_indices.size());
    const TakenAdapters taken(adapters, uses_, tokens.size(), logits_indices.size());
    const TakenInserts taken_inserts(inserts_, inserted, axes, spans, sequences, tokens.size());
    const Step step{tokens.data(),
                    tokens.size(),
                    sequences,
                    tables.data(),
                    logits_indices.data(),
                    logits_indices.size(),
                    reads ? reads->data() : nullptr,
                    writes ? writes->data() : nullptr,
                    given_rows(given, tokens.size()),
                    tops ? tops->data() : nullptr,
                    taken.adapters(),
                    taken_inserts.parts(),
                    axes ? axes->data() : nullptr,
                    taken_inserts.spans()};
    const Activations how = activations_named(activations);
    std::mutex& mutex = lock_.get();
    const WithoutGil released;
    const std::lock_guard<std::mutex> lock(mutex);
    if (seconds) return plan_.run_slice(step, out.data(), how, threads, resumes, *seconds);
    plan_.run(step, out.data(), how, threads);
    return true;
  }
  void profile(bool on) {
    std::mutex& mutex = lock_.get();
    const WithoutGil released;
    const std::lock_guard<std::mutex> lock(mutex);
    plan_.profile(on);
  }
  std::vector<std::pair<std::string, double>> seconds() {
    std::mutex& mutex = lock_.get();
    const WithoutGil released;
    const std::lock_guard<std::mutex> lock(mutex);
    return plan_.seconds();
  }
  size_t expert_bytes() {
    std::mutex& mutex = lock_.get();
    const WithoutGil released;
    const std::lock_guard<std::mutex> lock(mutex);
    return plan_.expert_bytes();
  }

 private:
  static void expect_below(const Int32s& numbers, size_t end, const char* what) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int32_t n = numbers.data()[i];
      if (n < 0 || static_cast<size_t>(n) >= end) {
        throw std::invalid_argument(std::string(what) + " " + std::to_string(n) + " of " + std::to_string(end));
      }
    }
  }

  PageGroups groups_;
  ForkedLock lock_;  // of what runs change
  LowRankUses uses_;
  InsertUses inserts_;
  size_t tokens_ = 0, positions_ = 0;  // that all tables have; 0: there is none
};

}  // namespace

void bind_plan(nb::module_& m) {
  bind_collective(m);
  nb::class_<PyAdapter>(m, "Adapter", "Low-rank terms of the products of a model.")
      .def(nb::init<>())
      .def("add", &PyAdapter::add, nb::arg("product"), nb::arg("a").none(), nb::arg("b").none(), nb::arg("kind"),
           nb::arg("r"), nb::arg("k"), nb::arg("n"), nb::arg("scale"), nb::arg("is_table"));
  nb::class_<PyPlan>(m, "Plan", "A model's step: operations on buffers of rows, recorded once.")
      .def(nb::init<bool>(), nb::arg("batch_invariant") = false)
      .def("buffer", &PyPlan::buffer, nb::arg("width"), nb::arg("logits_only"), nb::arg("slot"))
      .def("rope", &PyPlan::rope, nb::arg("inv_freq"), nb::arg("scale"), nb::arg("neox"), nb::arg("axes") = nb::none())
      .def("embed", &PyPlan::embed, nb::arg("w"), nb::arg("out"), nb::arg("scale"))
      .def("linear", &PyPlan::linear, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("at_least").none(),
           nb::arg("terms"), nb::arg("norms") = nb::none())
      .def("gated", &PyPlan::gated, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("gate"),
           nb::arg("up"), nb::arg("kind"), nb::arg("out"))
      .def("apply_rope", &PyPlan::apply_rope, nb::arg("x"), nb::arg("out"), nb::arg("heads"), nb::arg("dim"),
           nb::arg("rope"))
      .def("attend", &PyPlan::attend, nb::arg("k_format"), nb::arg("k_store"), nb::arg("k_dim"), nb::arg("v_format"),
           nb::arg("v_store"), nb::arg("v_dim"), nb::arg("group"), nb::arg("rotate"), nb::arg("q"), nb::arg("k"),
           nb::arg("v"), nb::arg("out"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"),
           nb::arg("sinks").none(), nb::arg("causal") = true, nb::arg("around") = 0, nb::arg("keep") = true,
           nb::arg("chunked") = false, nb::arg("spans") = false)
      .def("norm", &PyPlan::norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("heads"), nb::arg("out"))
      .def("layer_norm", &PyPlan::layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"),
           nb::arg("out"))
      .def("map", &PyPlan::map, nb::arg("x"), nb::arg("kind"), nb::arg("by"), nb::arg("vector").none(), nb::arg("out"))
      .def("positions", &PyPlan::positions, nb::arg("w"), nb::arg("out"))
      .def("columns", &PyPlan::columns, nb::arg("x"), nb::arg("start"), nb::arg("width"), nb::arg("heads"),
           nb::arg("out"))
      .def("join", &PyPlan::join, nb::arg("a"), nb::arg("b"), nb::arg("heads"), nb::arg("b_heads"), nb::arg("out"))
      .def("linear_heads", &PyPlan::linear_heads, nb::arg("x"), nb::arg("w"), nb::arg("out"))
      .def("experts", &PyPlan::experts, nb::arg("x"), nb::arg("scores"), nb::arg("matrices"), nb::arg("biases"),
           nb::arg("kind"), nb::arg("routing"), nb::arg("out"))
      .def("add", &PyPlan::add, nb::arg("a"), nb::arg("b"), nb::arg("out"))
      .def("gate", &PyPlan::gate, nb::arg("a"), nb::arg("b"), nb::arg("kind"), nb::arg("out"))
      .def("conv", &PyPlan::conv, nb::arg("x"), nb::arg("states"), nb::arg("offset"), nb::arg("weight"),
           nb::arg("bias").none(), nb::arg("silu"), nb::arg("out"))
      .def("delta_rule", &PyPlan::delta_rule, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("a"), nb::arg("b"),
           nb::arg("states"), nb::arg("offset"), nb::arg("heads"), nb::arg("v_heads"), nb::arg("decay"),
           nb::arg("dt_bias"), nb::arg("scale"), nb::arg("tiled"), nb::arg("out"))
      .def("scan", &PyPlan::scan, nb::arg("x"), nb::arg("dt"), nb::arg("b"), nb::arg("c"), nb::arg("states"),
           nb::arg("offset"), nb::arg("heads"), nb::arg("groups"), nb::arg("decay"), nb::arg("skip"),
           nb::arg("dt_bias"), nb::arg("out"))
      .def("gather", &PyPlan::gather, nb::arg("x"), nb::arg("out"))
      .def("given", &PyPlan::given, nb::arg("out"))
      .def("insert", &PyPlan::insert, nb::arg("x"), nb::arg("part"), nb::arg("adds"), nb::arg("out"))
      .def("all_reduce", &PyPlan::all_reduce, nb::arg("x"), nb::arg("group"), nb::arg("rank"), nb::arg("out"))
      .def("all_gather", &PyPlan::all_gather, nb::arg("x"), nb::arg("group"), nb::arg("rank"), nb::arg("first"),
           nb::arg("out"))
      .def("low_rank", &PyPlan::low_rank, nb::arg("x"), nb::arg("products"))
      .def("low_rank_rows", &PyPlan::low_rank_rows, nb::arg("product"), nb::arg("count"), nb::arg("out"))
      .def("set_result", &PyPlan::set_result, nb::arg("x"))
      .def("run", &PyPlan::run, OneTarget(), nb::arg("tokens"), nb::arg("groups"), nb::arg("lengths"),
           nb::arg("q_starts"), nb::arg("logits_indices"), nb::arg("out"), nb::arg("activations").none(),
           nb::arg("threads"), nb::arg("reads") = nb::none(), nb::arg("writes") = nb::none(),
           nb::arg("tops") = nb::none(), nb::arg("given") = nb::none(), nb::arg("adapters") = nb::list(),
           nb::arg("inserted") = nb::list(), nb::arg("axes") = nb::none(), nb::arg("spans") = nb::none(),
           nb::arg("seconds") = nb::none(), nb::arg("resumes") = false)
      .def("profile", &PyPlan::profile, nb::arg("on"))
      .def("seconds", &PyPlan::seconds)
      .def("expert_bytes", &PyPlan::expert_bytes);
}

}  // namespace fewbit
