// The native module. Every pointer and size is checked here, before any kernel runs.
#define FEWBIT_IMPORTS_NUMPY
#include "bindings.h"

#include "affinity.h"
#include "formats/geometry.h"
#include "logits.h"
#include "map_guard.h"
#include "probe.h"
#include "threads.h"

using namespace fewbit;

namespace {

void expect_shape(const MutableFloats& out, size_t rows, size_t columns) {
  expect(out.shape(0) == rows, "rows of the result", out.shape(0), rows);
  expect(out.shape(1) == columns, "columns of the result", out.shape(1), columns);
}

const Activation* activations_of(const Bytes& x, size_t m, size_t k, bool twice) {
  const size_t expected = times(activation_count(twice ? times(m, 2) : m, k), sizeof(Activation));
  expect(x.size() == expected, "bytes of the activations", x.size(), expected);
  const auto address = reinterpret_cast<uintptr_t>(x.data());
  expect(x.size() == 0 || address % alignof(Activation) == 0, "alignment of the activations", address % 64, 0);
  return reinterpret_cast<const Activation*>(x.data());
}

void py_decode(size_t format, size_t group, Bytes data, size_t n, size_t k, MutableFloats out, int threads) {
  const Matrix w = matrix(format, group, data, n, k);
  expect_shape(out, n, k);
  const WithoutGil released;
  decode(w, out.data(), threads);
}

void py_linear_backward(const nb::tuple& w, Floats grad, MutableFloats out, int threads) {
  const PyMatrix own = cast_matrix(w);
  const Matrix checked = own.of(out.shape(1));
  expect(grad.shape(1) == checked.n, "columns of the gradient", grad.shape(1), checked.n);
  expect(out.shape(0) == grad.shape(0), "rows of the result", out.shape(0), grad.shape(0));
  const WithoutGil released;
  multiply_transposed(checked, grad.data(), grad.shape(0), out.data(), threads);
}

void py_row_norms(const nb::tuple& w, size_t k, MutableRow out, int threads) {
  const PyMatrix own = cast_matrix(w);
  const Matrix checked = own.of(k);
  expect(out.size() == checked.n, "norms", out.size(), checked.n);
  const WithoutGil released;
  row_norms(checked, out.data(), threads);
}

// `importance` is a weight for each column, or for each value.
void py_encode(size_t format, size_t group, Floats x, std::optional<Row> importance, MutableBytes out, int threads) {
  const Kernels& kernels = kernels_of(format);
  const size_t n = x.shape(0), k = x.shape(1);
  const Layout at = checked_layout(kernels, k, group);
  expect(out.size() == times(n, at.row_bytes), "bytes of the result", out.size(), times(n, at.row_bytes));
  const size_t count = importance ? importance->size() : 0;
  const bool of_values = count != k;
  if (importance) expect(!of_values || count == times(n, k), "importance weights", count, k);
  const Importance weights = {importance ? importance->data() : nullptr, of_values ? k : 0};
  const WithoutGil released;
  encode(kernels, at, x.data(), n, k, weights, out.data(), threads);
}

const uint16_t* tiles_of(const Bytes& x, size_t m, size_t k) {
  const size_t expected = times(tile_elements(m, k), sizeof(uint16_t));
  expect(x.size() == expected, "bytes of the activations", x.size(), expected);
  const auto address = reinterpret_cast<uintptr_t>(x.data());
  expect(x.size() == 0 || address % 64 == 0, "alignment of the activations", address % 64, 0);
  return reinterpret_cast<const uint16_t*>(x.data());
}

// Activations of m rows of k values: floats, or what quantize_activations or pack_tiles made of them.
Inputs inputs_of(const nb::object& x, const std::string& kind, size_t m, size_t k) {
  Inputs in{m, k};
  if (kind == "f32") {
    const auto floats = nb::cast<Floats>(x, false);
    expect(floats.shape(0) == m, "rows of the activations", floats.shape(0), m);
    expect(floats.shape(1) == k, "columns of the activations", floats.shape(1), k);
    in.x = floats.data();
  } else if (kind == "q8") {
    in.q8 = activations_of(nb::cast<Bytes>(x, false), m, k, false);
  } else if (kind == "q16") {
    in.q16 = activations_of(nb::cast<Bytes>(x, false), m, k, true);
  } else if (kind == "bf16") {
    in.tiles = tiles_of(nb::cast<Bytes>(x, false), m, k);
  } else {
    throw std::invalid_argument("inputs are f32, q8, q16 or bf16, not " + kind);
  }
  return in;
}

// What was packed in 8 or in 16 bits stays so.
Activations activations_for(const Inputs& in, const ActivationsName& name) {
  const Activations given = activations_named(name);
  if (!in.q8 && !in.q16) return given;
  const Activations is = in.q8 ? Activations::int8 : Activations::int16;
  if (given != Activations::usual && given != is) throw std::invalid_argument("inputs are not packed as " + *name);
  return is;
}

void py_linear(const nb::list& weights, const nb::object& x, const std::string& kind, size_t m, size_t k,
               const std::vector<MutableFloats>& outs, const std::vector<std::optional<Row>>& biases,
               const std::vector<std::optional<Floats>>& residuals, int threads, const ActivationsName& activations) {
  expect(outs.size() == weights.size(), "results", outs.size(), weights.size());
  expect(biases.size() == weights.size(), "biases", biases.size(), weights.size());
  expect(residuals.size() == weights.size(), "residuals", residuals.size(), weights.size());
  const Inputs in = inputs_of(x, kind, m, k);
  const Activations how = activations_for(in, activations);
  std::vector<Product> products;
  for (size_t i = 0; i < weights.size(); ++i) {
    const PyMatrix w = cast_matrix(weights[i]);
    Product p{w.of(k), outs[i].data()};
    expect_shape(outs[i], m, w.n);
    if (biases[i]) {
      expect(biases[i]->size() == w.n, "values of the bias", biases[i]->size(), w.n);
      p.bias = biases[i]->data();
    }
    if (residuals[i]) {
      expect(residuals[i]->shape(0) == m, "rows of the residual", residuals[i]->shape(0), m);
      expect(residuals[i]->shape(1) == w.n, "columns of the residual", residuals[i]->shape(1), w.n);
      p.residual = residuals[i]->data();
    }
    products.push_back(p);
  }
  const WithoutGil released;
  multiply(products, in, how, threads);
}

void py_linear_one(size_t format, size_t group, Bytes data, size_t n, bool interleaved, Floats x, MutableFloats out,
                   int threads, const ActivationsName& activations) {
  const Activations how = activations_named(activations);
  const size_t m = x.shape(0), k = x.shape(1);
  const Product p{matrix(format, group, data, n, k, interleaved), out.data()};
  expect_shape(out, m, n);
  const auto apart = [&](const void* p, size_t bytes) {
    const auto a = reinterpret_cast<uintptr_t>(p), b = reinterpret_cast<uintptr_t>(out.data());
    return a + bytes <= b || b + out.nbytes() <= a;
  };
  if (!apart(x.data(), x.nbytes()) || !apart(data.data(), data.nbytes())) {
    throw std::invalid_argument("out overlaps an input");
  }
  Inputs in{m, k};
  in.x = x.data();
  const WithoutGil released;
  multiply({&p, 1}, in, how, threads);
}

void py_linear_gated(const nb::tuple& gate, const nb::tuple& up, const std::string& kind_of_gate, const nb::object& x,
                     const std::string& kind, size_t m, size_t k, MutableFloats out, int threads,
                     const ActivationsName& activations) {
  const PyMatrix g = cast_matrix(gate), u = cast_matrix(up);
  expect(g.n == u.n, "rows of up", u.n, g.n);
  expect_shape(out, m, g.n);
  const Matrix a = g.of(k), b = u.of(k);
  const Inputs in = inputs_of(x, kind, m, k);
  const Activations how = activations_for(in, activations);
  const Gate by = gate_named(kind_of_gate);
  const WithoutGil released;
  multiply_gated(a, b, by, in, out.data(), how, threads);
}

void py_quantize_activations(Floats x, bool twice, MutableBytes out, int threads) {
  const size_t m = x.shape(0), k = x.shape(1);
  Activation* a = const_cast<Activation*>(activations_of(Bytes(out), m, k, twice));
  const WithoutGil released;
  quantize_activations(x.data(), m, k, twice, a, threads);
}

void py_pack_tiles(Floats x, MutableBytes out, int threads) {
  const size_t m = x.shape(0), k = x.shape(1);
  auto* to = const_cast<uint16_t*>(tiles_of(Bytes(out), m, k));
  if (!current_target().products.tiles) throw std::invalid_argument("the instruction set in use has no matrix tiles");
  const WithoutGil released;
  pack_tiles(x.data(), m, k, to, threads);
}

void py_unpack_tiles(Bytes x, MutableFloats out) {
  const size_t m = out.shape(0), k = out.shape(1);
  const uint16_t* from = tiles_of(x, m, k);
  const WithoutGil released;
  unpack_tiles(from, m, k, out.data());
}

void py_decode_activations(Bytes x, bool twice, MutableFloats out) {
  const size_t m = out.shape(0), k = out.shape(1);
  const Activation* a = activations_of(x, m, k, twice);
  const WithoutGil released;
  decode_activations(a, m, k, twice, out.data());
}

void py_kv_write(size_t format, MutablePages4 store, Heads3 x, Int64s slots, bool rotate, bool is_value, int threads) {
  const Store to = store_of(format, Pages4(store), x.shape(2), is_value);
  const size_t tokens = page_tokens(to, Pages4(store));
  expect(x.shape(1) == store.shape(1), "heads", x.shape(1), store.shape(1));
  expect(slots.size() == x.shape(0), "slots", slots.size(), x.shape(0));
  const size_t room = times(store.shape(0), tokens);
  for (size_t t = 0; t < slots.size(); ++t) {
    const int64_t slot = slots.data()[t];
    if (slot < 0 || static_cast<size_t>(slot) >= room) {
      throw std::invalid_argument("slot " + std::to_string(slot) + " of " + std::to_string(room));
    }
  }
  const Heads heads{store.shape(1), tokens, rotate};
  const WithoutGil released;
  kv_write(to, heads, x.data(), slots.data(), x.shape(0), threads);
}

bool py_kv_tiles(size_t format, size_t dim) {
  const Kernels& kernels = kernels_of(format);
  return kernels.kv.prefers_tiled && can_tile(kernels.kv, dim);
}

void py_attend(Heads3 q, size_t k_format, Pages4 k, size_t v_format, Pages4 v, Int32s tables, Int64s table_starts,
               Int64s lengths, Int64s q_starts, float scale, bool rotate, size_t window, float softcap,
               std::optional<Row> sinks, MutableHeads3 out, bool exact, int threads, bool chunked) {
  const Store keys = store_of(k_format, k, q.shape(2), false), values = store_of(v_format, v, out.shape(2), true);
  expect_alike(keys, k, values, v);
  for (size_t i = 0; i < 2; ++i) {
    expect(out.shape(i) == q.shape(i), "sizes of the result", out.shape(i), q.shape(i));
  }
  expect(q.shape(1) > 0 && q.shape(1) % k.shape(1) == 0, "query heads, a multiple of the heads of K", q.shape(1),
         k.shape(1));
  const size_t tokens = page_tokens(keys, k);
  expect_lengths(lengths, q_starts, q.shape(0));
  const Sequences sequences{lengths.data(), q_starts.data(), lengths.size()};
  const PageTables pages = tables_of(tables, table_starts, lengths, k.shape(0), tokens);
  if (sinks) expect(sinks->size() == q.shape(1), "sinks", sinks->size(), q.shape(1));
  if (q.data() < out.data() + out.size() && out.data() < q.data() + q.size()) {
    throw std::invalid_argument("the result of attend must not lie in q");
  }
  const Heads heads{k.shape(1), tokens, rotate};
  const Logits logits{scale, window, softcap, sinks ? sinks->data() : nullptr, true, 0, chunked};
  const WithoutGil released;
  attend(keys, values, heads, sequences, pages, logits, q.data(), q.shape(1), nullptr, out.data(), exact, false,
         threads);
}

constexpr int kMostNumbers = 1 << 16;

void expect_numbers(const std::vector<int>& numbers, const char* what) {
  if (numbers.empty()) throw std::invalid_argument(std::string("there must be at least one ") + what);
  for (const int number : numbers) {
    if (number < 0 || number >= kMostNumbers) {
      throw std::invalid_argument(std::string(what) + "s have numbers from 0 to 65535, not " + std::to_string(number));
    }
  }
}

int py_bind_threads(const std::vector<std::vector<int>>& workers, const std::vector<int>& others) {
  for (const std::vector<int>& cpus : workers) expect_numbers(cpus, "CPU");
  expect_numbers(others, "CPU");
  return bind_threads(workers, others);
}

int py_place_memory(MutableBytes data, const std::vector<int>& nodes, bool interleave) {
  expect_numbers(nodes, "node");
  return place_memory(data.data(), data.size(), nodes, interleave);
}

double py_probe_read(Bytes data, int threads, bool prefetch) {
  expect(threads >= 1 && threads <= kMaxThreads, "threads", static_cast<size_t>(threads), kMaxThreads);
  const WithoutGil released;
  return probe_read(data.data(), data.size(), threads, prefetch);
}

double py_probe_rate(const std::string& kind, double seconds, int threads) {
  expect(threads >= 1 && threads <= kMaxThreads, "threads", static_cast<size_t>(threads), kMaxThreads);
  const WithoutGil released;
  return probe_rate(kind, seconds, threads);
}

void py_interleave(size_t format, size_t group, Bytes data, size_t n, size_t k, bool back, MutableBytes out,
                   int threads) {
  const Matrix w = matrix(format, group, data, n, k, true);
  expect(out.size() == data.size(), "bytes of the result", out.size(), data.size());
  if (data.data() < out.data() + out.size() && out.data() < data.data() + data.size()) {
    throw std::invalid_argument("rows cannot be moved in place");
  }
  const WithoutGil released;
  interleave(w, back, out.data(), threads);
}

std::pair<std::string, std::string> py_path(size_t format, size_t group, size_t k, size_t m, bool interleaved,
                                            const ActivationsName& activations) {
  const Kernels& kernels = kernels_of(format);
  Layout at = checked_layout(kernels, k, group);
  at.interleaved = interleaved && can_interleave(kernels, at, k);
  const Way way = choose(kernels, at, k, m, activations_named(activations));
  return {path_name(way.path), inputs_name(way)};
}

std::vector<std::string> names_of(const std::vector<const Target*>& targets) {
  std::vector<std::string> names;
  for (const Target* t : targets) names.emplace_back(t->name);
  return names;
}

}  // namespace

NB_MODULE(_native, m) {
  if (_import_array() < 0) throw nb::python_error();
  nb::set_leak_warnings(false);  // a plan may live as long as the interpreter
  m.doc() = "Kernels of fewbit. Use them through fewbit.ops.cpu.";
  m.attr("activation_bytes") = sizeof(Activation);
  m.attr("max_threads") = kMaxThreads;
  m.def("isas", [] { return names_of(available_targets()); }, "Available instruction sets, best first.");
  m.def(
      "known_isas", [] { return names_of(compiled_targets()); }, "Those that this build has kernels for, best first.");
  m.def("isa", [] { return std::string(current_target().name); }, "The instruction set in use.");
  m.def(
      "int16_rows", [] { return current_target().products.int16_rows; },
      "Rows of activations that it takes in 16 bits unless told otherwise.");
  m.def(
      "products", [] { return current_target().products.count.load(); },
      "Products made by the instruction set in use.");
  m.def("use_isa", use_target, nb::arg("name"), "Use an available instruction set from now on.");
  m.def("scratch_bytes", [] { return workspace_bytes.load(); }, "Memory that calls and plans keep for the next ones.");
  m.def("format_names", [] { return format_names(); }, "Native formats; a format's number is its place here.");
  m.def(
      "row_bytes",
      [](size_t format, size_t group, size_t k) { return checked_layout(kernels_of(format), k, group).row_bytes; },
      nb::arg("format"), nb::arg("group"), nb::arg("k"), "Bytes of a row of k values.");
  m.def("path", py_path, OneTarget(), nb::arg("format"), nb::arg("group"), nb::arg("k"), nb::arg("m"),
        nb::arg("layout"), nb::arg("activations").none(),
        "The kernel that multiplies m rows of activations by rows of this format, and how it takes them.");
  m.def("decode", py_decode, OneTarget(), nb::arg("format"), nb::arg("group"), nb::arg("data"), nb::arg("n"),
        nb::arg("k"), nb::arg("out"), nb::arg("threads"), "Packed rows to floats.");
  m.def("linear_backward", py_linear_backward, OneTarget(), nb::arg("w"), nb::arg("grad"), nb::arg("out"),
        nb::arg("threads"), "out = grad times the packed matrix.");
  m.def("row_norms", py_row_norms, OneTarget(), nb::arg("w"), nb::arg("k"), nb::arg("out"), nb::arg("threads"),
        "The L2 norm of each row of a matrix.");
  m.def(
      "worth_interleaving",
      [](size_t format, size_t group, size_t n, size_t k) {
        const Kernels& kernels = kernels_of(format);
        const bool has = kernels.interleaved_gemv || (kernels.by_lane.skinny[0] && k % kBlockK == 0);
        return has && n >= 16 && can_interleave(kernels, checked_layout(kernels, k, group), k);
      },
      nb::arg("format"), nb::arg("group"), nb::arg("n"), nb::arg("k"),
      "Whether n rows of k values are multiplied faster interleaved.");
  m.def("interleave", py_interleave, OneTarget(), nb::arg("format"), nb::arg("group"), nb::arg("data"), nb::arg("n"),
        nb::arg("k"), nb::arg("back"), nb::arg("out"), nb::arg("threads"), "Interleaves rows, 16 together, or back.");
  m.def("encode", py_encode, OneTarget(), nb::arg("format"), nb::arg("group"), nb::arg("x"),
        nb::arg("importance").none(), nb::arg("out"), nb::arg("threads"), "Floats to packed rows.");
  m.def("linear", py_linear_one, OneTarget(), nb::arg("format"), nb::arg("group"), nb::arg("data"), nb::arg("n"),
        nb::arg("interleaved"), nb::arg("x"), nb::arg("out"), nb::arg("threads"), nb::arg("activations").none(),
        "out = x times the transpose of the packed matrix.");
  m.def("linear_many", py_linear, OneTarget(), nb::arg("weights"), nb::arg("x"), nb::arg("kind"), nb::arg("m"),
        nb::arg("k"), nb::arg("outs"), nb::arg("biases"), nb::arg("residuals"), nb::arg("threads"),
        nb::arg("activations").none(), "Several products of the same activations, with what is added to them.");
  m.def("linear_gated", py_linear_gated, OneTarget(), nb::arg("gate"), nb::arg("up"), nb::arg("kind_of_gate"),
        nb::arg("x"), nb::arg("kind"), nb::arg("m"), nb::arg("k"), nb::arg("out"), nb::arg("threads"),
        nb::arg("activations").none(), "gate(x times gate) * (x times up).");
  m.def(
      "tile_bytes", [](size_t m, size_t k) { return times(tile_elements(m, k), sizeof(uint16_t)); }, nb::arg("m"),
      nb::arg("k"), "Bytes of m rows of k activations as bf16 tiles.");
  m.def("pack_tiles", py_pack_tiles, OneTarget(), nb::arg("x"), nb::arg("out"), nb::arg("threads"),
        "Floats to bf16 tiles.");
  m.def("unpack_tiles", py_unpack_tiles, nb::arg("x"), nb::arg("out"), "bf16 tiles to floats.");
  m.def("quantize_activations", py_quantize_activations, OneTarget(), nb::arg("x"), nb::arg("twice"), nb::arg("out"),
        nb::arg("threads"), "Floats to 8-bit activations, or twice as many rows for 16 bits.");
  m.def("kv_write", py_kv_write, OneTarget(), nb::arg("format"), nb::arg("store"), nb::arg("x"), nb::arg("slots"),
        nb::arg("rotate"), nb::arg("is_value"), nb::arg("threads"), "Pack rows of K or V into pages.");
  m.def("kv_tiles", py_kv_tiles, OneTarget(), nb::arg("format"), nb::arg("dim"),
        "Whether K and V of this format are best kept as matrix tiles want them.");
  m.def("attend", py_attend, OneTarget(), nb::arg("q"), nb::arg("k_format"), nb::arg("k"), nb::arg("v_format"),
        nb::arg("v"), nb::arg("tables"), nb::arg("table_starts"), nb::arg("lengths"), nb::arg("q_starts"),
        nb::arg("scale"), nb::arg("rotate"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks").none(),
        nb::arg("out"), nb::arg("exact"), nb::arg("threads"), nb::arg("chunked") = false, "Attention over pages.");
  m.def(
      "guard_map", [](Bytes data) { return guard_map(data.data(), data.size()); }, nb::arg("data"),
      "Guards the memory map of a file against SIGBUS; its number, for map_failed and unguard_map.");
  m.def("map_failed", map_failed, nb::arg("number"), "Whether pages of a guarded map were lost and read as zeros.");
  m.def("unguard_map", unguard_map, nb::arg("number"), "To be called when the memory is unmapped.");
  bind_plan(m);
  bind_sample(m);
  bind_launches(m);
  m.def("bind_threads", py_bind_threads, nb::arg("workers"), nb::arg("others"),
        "CPUs of each worker of the pool, and of further ones. Returns an error number.");
  m.def("place_memory", py_place_memory, nb::arg("data"), nb::arg("nodes"), nb::arg("interleave"),
        "NUMA nodes of memory that was not touched yet. Returns an error number.");
  m.def("probe_read", py_probe_read, OneTarget(), nb::arg("data"), nb::arg("threads"), nb::arg("prefetch"),
        "Seconds to read the bytes once.");
  m.def("probe_rate", py_probe_rate, OneTarget(), nb::arg("kind"), nb::arg("seconds"), nb::arg("threads"),
        "Multiply-adds a second in registers; kind is int8, bf16 or f32; 0 where there is none.");
  m.def("decode_activations", py_decode_activations, nb::arg("x"), nb::arg("twice"), nb::arg("out"),
        "Activations in 8 or in 16 bits to floats.");
}
