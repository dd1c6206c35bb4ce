// Types and checks of the files that know Python. Every pointer and size is checked there, before any kernel runs.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "arrays.h"
#include "attention.h"
#include "call.h"
#include "linear.h"
#include "workspace.h"

namespace fewbit {

using Bytes = Array<const uint8_t, 1>;
using MutableBytes = Array<uint8_t, 1>;
using Floats = Array<const float, 2>;
using Row = Array<const float, 1>;
using MutableRow = Array<float, 1>;
using MutableFloats = Array<float, 2>;

// Other Python threads run while it lives. While the interpreter shuts down, Python ends the daemon threads that want
// the GIL back by unwinding their stacks, which C++ would answer with abort(): they wait for the end of the process.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    ThreadWorkspace::trim();
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

using OneTarget = nb::call_guard<CallScope>;  // for what multiplies, packs or reads what was packed

constexpr size_t kLargest = size_t{1} << 40;  // of one dimension: products of two sizes stay far from overflow

inline void expect(bool holds, std::string_view what, size_t got, size_t expected) {
  if (!holds) {
    throw std::invalid_argument(std::string(what) + ": got " + std::to_string(got) + ", expected " +
                                std::to_string(expected));
  }
}

inline const Kernels& kernels_of(size_t format) {
  expect(format < format_names().size(), "format number", format, format_names().size() - 1);
  return current_target().kernels()[format];
}

inline size_t times(size_t a, size_t b) {
  size_t out;
  if (__builtin_mul_overflow(a, b, &out)) throw std::invalid_argument("a size is too large");
  return out;
}

inline Layout checked_layout(const Kernels& kernels, size_t k, size_t group) {
  if (k > kLargest || group > kLargest) throw std::invalid_argument("a size is too large");
  return kernels.layout(k, group);
}

inline Matrix matrix(size_t format, size_t group, const Bytes& data, size_t n, size_t k, bool interleaved = false) {
  const Kernels& kernels = kernels_of(format);
  Layout at = checked_layout(kernels, k, group);
  if (interleaved) {
    if (!kernels.interleaves)
      throw std::invalid_argument(std::string("rows of ") + kernels.format + " are never interleaved");
    const size_t values = kernels.interleaves;
    expect(k > 0 && k % values == 0, "values of an interleaved row, over a multiple of " + std::to_string(values),
           k % values, 0);
    if (!can_interleave(kernels, at, k))
      throw std::invalid_argument("rows with a scale for every " + std::to_string(at.group) + " are never interleaved");
    at.interleaved = true;
  }
  expect(data.size() == times(n, at.row_bytes), "bytes of the matrix", data.size(), times(n, at.row_bytes));
  return {&kernels, at, data.data(), n, k};
}

struct PyMatrix {  // format number, group, bytes, rows, whether they are interleaved
  size_t format, group;
  Bytes data;
  size_t n;
  bool interleaved;

  Matrix of(size_t k) const { return matrix(format, group, data, n, k, interleaved); }
};
inline PyMatrix cast_matrix(const nb::handle& w) {
  const auto t = nb::cast<nb::tuple>(w);
  expect(t.size() == 5, "parts of a matrix", t.size(), 5);
  return {nb::cast<size_t>(t[0]), nb::cast<size_t>(t[1]), nb::cast<Bytes>(t[2], false), nb::cast<size_t>(t[3]),
          nb::cast<bool>(t[4])};
}

inline Gate gate_named(const std::string& name) {
  if (name == "silu") return Gate::silu;
  if (name == "gelu") return Gate::gelu;
  if (name == "gelu_tanh") return Gate::gelu_tanh;
  if (name == "relu") return Gate::relu;
  throw std::invalid_argument("gates are silu, gelu, gelu_tanh and relu, not " + name);
}

using ActivationsName = std::optional<std::string>;
inline Activations activations_named(const ActivationsName& name) {
  if (!name) return Activations::usual;
  if (*name == "int8") return Activations::int8;
  if (*name == "int16") return Activations::int16;
  if (*name == "exact") return Activations::exact;
  throw std::invalid_argument("activations are int8, int16 or exact, not " + *name);
}

using Heads3 = Array<const float, 3>;
using MutableHeads3 = Array<float, 3>;
using Pages4 = Array<const uint8_t, 4>;
using MutablePages4 = Array<uint8_t, 4>;
using Int32s = Array<const int32_t, 1>;
using Int64s = Array<const int64_t, 1>;

// A store of the KV cache: (pages, heads, tokens of a page, bytes of a row); or, where 32 rows lie as matrix tiles want
// them, (pages, heads, 32s of tokens of a page, bytes of 32 rows).
inline Store store_of(size_t format, const Pages4& data, size_t dim, bool is_value) {
  const Kernels& kernels = kernels_of(format);
  if (!kernels.kv.scores) {
    throw std::invalid_argument(std::string(kernels.format) + " cannot be used for the KV cache");
  }
  if (dim == 0 || dim > 65536) throw std::invalid_argument("a head has 1 to 65536 values");
  const Layout at = checked_layout(kernels, kv_row_values(kernels, dim), 1);
  const bool tiled = can_tile(kernels.kv, dim) && data.shape(3) == kKvTokens * at.row_bytes;
  expect(tiled || data.shape(3) == at.row_bytes, "bytes of a row of the store", data.shape(3), at.row_bytes);
  expect(data.shape(1) > 0 && data.shape(2) > 0, "heads and tokens of a page", data.shape(1) * data.shape(2), 1);
  const Order order = !tiled ? Order::rows : is_value ? Order::value_tiles : Order::key_tiles;
  return {&kernels, at, const_cast<uint8_t*>(data.data()), order, dim};
}
inline size_t page_tokens(const Store& store, const Pages4& data) {
  return store.tiled() ? times(data.shape(2), kKvTokens) : data.shape(2);
}
// K and V lie in the same way, in as many pages.
inline void expect_alike(const Store& k, const Pages4& k_data, const Store& v, const Pages4& v_data) {
  for (size_t i = 0; i < 3; ++i) {
    expect(k_data.shape(i) == v_data.shape(i), "sizes of the V store", v_data.shape(i), k_data.shape(i));
  }
  if (k.tiled() != v.tiled()) throw std::invalid_argument("K and V must both lie as tiles, or as rows");
}

// Starts that rise from 0 to `end`.
inline void expect_starts(const Int64s& starts, size_t count, size_t end, std::string_view what) {
  expect(starts.size() == count + 1, what, starts.size(), count + 1);
  int64_t before = 0;
  for (size_t i = 0; i <= count; ++i) {
    const int64_t at = starts.data()[i];
    if (at < before || (i == 0 && at != 0)) throw std::invalid_argument(std::string(what) + " must rise from 0");
    before = at;
  }
  expect(static_cast<size_t>(before) == end, what, static_cast<size_t>(before), end);
}

// How many tokens sequences have, and which rows of queries are their last ones.
inline void expect_lengths(const Int64s& lengths, const Int64s& q_starts, size_t rows) {
  expect_starts(q_starts, lengths.size(), rows, "starts of queries");
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths.data()[s] < q_starts.data()[s + 1] - q_starts.data()[s]) {
      throw std::invalid_argument("a sequence has more queries than tokens");
    }
  }
}
// The pages of sequences, among `pages` of `page_tokens` tokens.
inline PageTables tables_of(const Int32s& tables, const Int64s& starts, const Int64s& lengths, size_t pages,
                            size_t page_tokens) {
  expect_starts(starts, lengths.size(), tables.size(), "starts of page tables");
  for (size_t i = 0; i < tables.size(); ++i) {
    const int32_t page = tables.data()[i];
    if (page < 0 || static_cast<size_t>(page) >= pages) {
      throw std::invalid_argument("page " + std::to_string(page) + " of " + std::to_string(pages));
    }
  }
  for (size_t s = 0; s < lengths.size(); ++s) {
    const auto room = static_cast<size_t>(starts.data()[s + 1] - starts.data()[s]) * page_tokens;
    const auto length = static_cast<size_t>(lengths.data()[s]);
    expect(length <= room, "tokens of a sequence", length, room);
  }
  return {tables.data(), starts.data()};
}

void bind_plan(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_launches(nb::module_& m);

}  // namespace fewbit
