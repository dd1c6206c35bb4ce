// Plans for Python: what is recorded is checked when it is recorded, what a step brings is checked at each step.
#include <cmath>

#include "bindings.h"
#include "plan.h"
#include "threads.h"

namespace fewbit {
namespace {

using plan::Buffer;

constexpr size_t kMaxGroups = 1024;

// A plan and the arrays that it reads.
class PyPlan {
 public:
  Buffer buffer(size_t width, bool logits_only, size_t slot) {
    if (width == 0 || width > kLargest) throw std::invalid_argument("a buffer has at least one column");
    expect(slot <= plan_.buffers(), "slot of a buffer", slot, plan_.buffers());
    if (ready_) throw std::invalid_argument("the plan has its result: it takes no more buffers");
    return plan_.buffer(width, logits_only, slot);
  }
  size_t rope(Row inv_freq, float scale, bool neox) {
    Rope out{{}, scale, neox};
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      if (!std::isfinite(inv_freq.data()[i])) throw std::invalid_argument("frequencies must be finite");
      out.inv_freq.push_back(inv_freq.data()[i]);
    }
    return plan_.rope(std::move(out));
  }
  void embed(const nb::tuple& w, Buffer out, float scale) {
    const plan::Weight table = weight(w, width(out));
    expect_rows(out, false);
    if (table.n == 0) throw std::invalid_argument("a table of embeddings has at least one row");
    if (table.at.interleaved)
      throw std::invalid_argument("a table of embeddings is read row by row: it cannot be interleaved");
    tokens_ = tokens_ ? std::min(tokens_, table.n) : table.n;
    plan_.add(plan::Embed{table, scale, out});
  }
  void linear(Buffer in, std::optional<Row> norm, float eps, bool int16, const nb::list& terms) {
    plan::Linear op{in, norm_of(norm, eps, width(in)), int16, {}};
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
    plan_.add(std::move(op));
  }
  void gated(Buffer in, std::optional<Row> norm, float eps, const nb::tuple& gate, const nb::tuple& up,
             const std::string& kind, Buffer out) {
    const plan::Weight g = weight(gate, width(in)), u = weight(up, width(in));
    expect(g.n == u.n, "rows of up", u.n, g.n);
    expect(width(out) == g.n, "columns of the result", width(out), g.n);
    expect_rows(out, plan_.logits_only(in));
    expect(out != in, "a result that is not the input", out, in);
    plan_.add(plan::Gated{in, norm_of(norm, eps, width(in)), g, u, gate_named(kind), out});
  }
  void apply_rope(Buffer in, Buffer out, size_t heads, size_t dim, size_t rope) {
    expect(rope < plan_.ropes(), "number of a rope", rope, plan_.ropes());
    expect_same(in, out);
    expect(times(heads, dim) == width(in), "columns", width(in), times(heads, dim));
    expect(2 * plan_.rope_at(rope).inv_freq.size() <= dim, "values that rope rotates", dim,
           2 * plan_.rope_at(rope).inv_freq.size());
    expect_rows(in, false);
    plan_.add(plan::ApplyRope{in, out, heads, dim, rope});
  }
  void attend(size_t k_format, MutablePages4 k_store, size_t k_dim, size_t v_format, MutablePages4 v_store,
              size_t v_dim, size_t group, bool rotate, Buffer q, Buffer k, Buffer v, Buffer out, float scale,
              size_t window, float softcap, std::optional<Row> sinks) {
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
    expect_group(group, {k_store.shape(0), heads.page_tokens});
    const float* sink = sinks ? keep(*sinks, q_heads, "sinks") : nullptr;
    keep_.push_back(k_store.owner());
    keep_.push_back(v_store.owner());
    plan_.add(plan::Attend{k_format, v_format, keys, values, heads, group, q_heads,
                           Logits{scale, window, softcap, sink}, q, k, v, out});
  }
  void norm(Buffer in, Row weight, float eps, Buffer out) {
    expect_same(in, out);
    plan_.add(plan::Norm{in, norm_of(weight, eps, width(in)), out});
  }
  void add(Buffer a, Buffer b, Buffer out) {
    expect_same(a, out);
    expect_same(b, out);
    plan_.add(plan::Add{a, b, out});
  }
  void gate(Buffer a, Buffer b, const std::string& kind, Buffer out) {
    expect_same(a, out);
    expect_same(b, out);
    expect(a != out, "a result that is not the gate", a, out);
    plan_.add(plan::GateOf{a, b, gate_named(kind), out});
  }
  void gather(Buffer in, Buffer out) {
    expect(width(in) == width(out), "columns of the result", width(out), width(in));
    expect_rows(in, false);
    expect_rows(out, true);
    plan_.add(plan::Gather{in, out});
  }
  void set_result(Buffer b) {
    expect_rows(b, true);
    for (Buffer other = 0; other < plan_.buffers(); ++other) {  // its slot has no memory of its own
      expect(other == b || plan_.slot(other) != plan_.slot(b), "slot of another buffer than the result's",
             plan_.slot(other), plan_.slot(b));
    }
    plan_.set_result(b);
    ready_ = true;
  }

  void run(Int32s tokens, const nb::list& groups, Int64s lengths, Int64s q_starts, Int32s logits_indices,
           MutableFloats out, const ActivationsName& activations, int threads) {
    if (!ready_) throw std::invalid_argument("the plan has no result");
    expect(threads >= 1 && threads <= kMaxThreads, "threads", static_cast<size_t>(threads), kMaxThreads);
    expect_below(tokens, tokens_, "token");
    expect_below(logits_indices, tokens.size(), "row of logits");
    expect(out.shape(0) == logits_indices.size(), "rows of the result", out.shape(0), logits_indices.size());
    expect(out.shape(1) == width(plan_.result()), "columns of the result", out.shape(1), width(plan_.result()));
    expect_lengths(lengths, q_starts, tokens.size());
    const Sequences sequences{lengths.data(), q_starts.data(), lengths.size()};
    const nb::tuple held(groups);  // so that nobody takes the arrays away while it runs
    take_tables(held, lengths);
    const Step step{tokens.data(),  tokens.size(),         sequences,
                    tables_.data(), logits_indices.data(), logits_indices.size()};
    const Activations how = activations_named(activations);
    nb::gil_scoped_release release;
    plan_.run(step, out.data(), how, threads);
  }
  void profile(bool on) { plan_.profile(on); }
  std::vector<std::pair<std::string, double>> seconds() const { return plan_.seconds(); }

 private:
  struct Pages {  // of a group of layers
    size_t count = 0, tokens = 0;
  };

  // All layers of a group have as many pages, and these as many tokens.
  void expect_group(size_t group, const Pages& pages) {
    expect(group < kMaxGroups, "number of a group, at most", group, kMaxGroups - 1);
    expect(pages.count > 0, "pages", pages.count, 1);
    if (group >= groups_.size()) groups_.resize(group + 1);
    Pages& own = groups_[group];
    if (own.count == 0) own = pages;
    expect(pages.count == own.count, "pages", pages.count, own.count);
    expect(pages.tokens == own.tokens, "tokens of a page", pages.tokens, own.tokens);
    plan_.set_page_tokens(group, own.tokens);
  }
  // (tables, table_starts) of each group; of those that no operation reads, anything.
  void take_tables(const nb::tuple& groups, const Int64s& lengths) {
    expect(groups.size() >= groups_.size(), "groups of page tables", groups.size(), groups_.size());
    tables_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].count == 0) continue;
      nb::tuple pair;
      Int32s tables;
      Int64s starts;
      if (!nb::try_cast(groups[g], pair, false) || pair.size() != 2 || !nb::try_cast(pair[0], tables, false) ||
          !nb::try_cast(pair[1], starts, false)) {
        throw std::invalid_argument("group " + std::to_string(g) +
                                    " must be a tuple of page tables (int32) and starts (int64)");
      }
      tables_[g] = tables_of(tables, starts, lengths, groups_[g].count, groups_[g].tokens);
    }
  }
  size_t width(Buffer b) const {
    expect(b < plan_.buffers(), "number of a buffer", b, plan_.buffers());
    return plan_.width(b);
  }
  void expect_rows(Buffer b, bool logits_only) const {
    width(b);
    if (plan_.logits_only(b) != logits_only)
      throw std::invalid_argument("rows of all tokens and rows of logits are mixed");
  }
  void expect_same(Buffer a, Buffer b) const {
    expect(width(a) == width(b), "columns of the result", width(b), width(a));
    expect_rows(a, plan_.logits_only(b));
  }
  static void expect_below(const Int32s& numbers, size_t end, const char* what) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int32_t n = numbers.data()[i];
      if (n < 0 || static_cast<size_t>(n) >= end) {
        throw std::invalid_argument(std::string(what) + " " + std::to_string(n) + " of " + std::to_string(end));
      }
    }
  }
  const float* keep(const Row& values, size_t count, const char* what) {
    expect(values.size() == count, what, values.size(), count);
    keep_.push_back(values.owner());
    return values.data();
  }
  plan::RowNorm norm_of(const std::optional<Row>& weight, float eps, size_t n) {
    if (!weight) return {};
    return {keep(*weight, n, "weights of the norm"), eps};
  }
  plan::Weight weight(const nb::tuple& w, size_t k) {
    const PyMatrix m = cast_matrix(w);
    const Matrix checked = m.of(k);
    keep_.push_back(m.data.owner());
    return {m.format, checked.at, checked.data, m.n, k};
  }

  Plan plan_;
  std::vector<nb::object> keep_;
  std::vector<Pages> groups_;
  std::vector<PageTables> tables_;  // of a step; kept, so that nothing is allocated again
  size_t tokens_ = 0;
  bool ready_ = false;
};

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<PyPlan>(m, "Plan", "A model's step: operations on buffers of rows, recorded once.")
      .def(nb::init<>())
      .def("buffer", &PyPlan::buffer, nb::arg("width"), nb::arg("logits_only"), nb::arg("slot"))
      .def("rope", &PyPlan::rope, nb::arg("inv_freq"), nb::arg("scale"), nb::arg("neox"))
      .def("embed", &PyPlan::embed, nb::arg("w"), nb::arg("out"), nb::arg("scale"))
      .def("linear", &PyPlan::linear, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("int16"),
           nb::arg("terms"))
      .def("gated", &PyPlan::gated, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("gate"),
           nb::arg("up"), nb::arg("kind"), nb::arg("out"))
      .def("apply_rope", &PyPlan::apply_rope, nb::arg("x"), nb::arg("out"), nb::arg("heads"), nb::arg("dim"),
           nb::arg("rope"))
      .def("attend", &PyPlan::attend, nb::arg("k_format"), nb::arg("k_store"), nb::arg("k_dim"), nb::arg("v_format"),
           nb::arg("v_store"), nb::arg("v_dim"), nb::arg("group"), nb::arg("rotate"), nb::arg("q"), nb::arg("k"),
           nb::arg("v"), nb::arg("out"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"),
           nb::arg("sinks").none())
      .def("norm", &PyPlan::norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"))
      .def("add", &PyPlan::add, nb::arg("a"), nb::arg("b"), nb::arg("out"))
      .def("gate", &PyPlan::gate, nb::arg("a"), nb::arg("b"), nb::arg("kind"), nb::arg("out"))
      .def("gather", &PyPlan::gather, nb::arg("x"), nb::arg("out"))
      .def("set_result", &PyPlan::set_result, nb::arg("x"))
      .def("run", &PyPlan::run, nb::arg("tokens"), nb::arg("groups"), nb::arg("lengths"), nb::arg("q_starts"),
           nb::arg("logits_indices"), nb::arg("out"), nb::arg("activations").none(), nb::arg("threads"))
      .def("profile", &PyPlan::profile, nb::arg("on"))
      .def("seconds", &PyPlan::seconds);
}

}  // namespace fewbit
