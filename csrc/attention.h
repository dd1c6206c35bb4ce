// Attention over the pages of a KV cache, for several sequences at once. Pointers and sizes have been checked by the
// caller.
#pragma once
#include "dispatch.h"

namespace fewbit {

// K or V of one layer: [page][head][token of the page][row]. A row is what one head keeps of one token. In the bytes of
// every 32 rows their numbers can also lie in tiles, as some targets want them: see kernels/kv_tiled.h.
enum class Order { rows, key_tiles, value_tiles };

// Rows as floats are padded with zeros to blocks of 32.
constexpr size_t padded(size_t dim) { return (dim + 31) / 32 * 32; }

struct Store {
  const Kernels* kernels;
  Layout at;
  uint8_t* data;
  Order order;
  size_t dim;  // values of a row; those of K and V may differ

  bool tiled() const { return order != Order::rows; }
  size_t pad() const { return padded(dim); }
};

struct Heads {
  size_t kv_heads, page_tokens;
  bool rotate;  // K is kept, and so q is taken, after a Hadamard transform
};

struct Sequences {
  const int64_t* lengths;   // tokens, the queries among them: they are the last ones
  const int64_t* q_starts;  // rows of q
  size_t count;
};

struct PageTables {
  const int32_t* pages;  // those of one sequence after another
  const int64_t* starts;
};

// The positions of the span that a new token is part of: it sees all of them.
struct Span {
  int64_t begin, end;
};

struct Logits {
  float scale;
  size_t window;         // 0: no limit
  float softcap;         // 0: none
  const float* sinks;    // for each query head, or null
  bool causal = true;    // else a query also sees tokens after its own, and window is 0
  size_t around = 0;     // not causal: those up to so many tokens away, 0: all
  bool chunked = false;  // a query sees tokens of its own chunk of `window` only
  // Of each row of q, or null. Causal: a query also sees its span. Else it sees nothing but that.
  const Span* spans = nullptr;
};

// The values that a row of a store holds: dim, or whole blocks.
size_t kv_row_values(const Kernels& kernels, size_t dim);

// Packs x (tokens, kv_heads, dim); token t goes to slots[t] = page * page_tokens + place in the page.
void kv_write(const Store& to, const Heads& heads, const float* x, const int64_t* slots, size_t tokens, int threads);

// K and V of the queries' tokens, (rows, kv_heads, dim of K or V), and where they go.
struct Fresh {
  const float *k, *v;
  const int64_t* slots;
};

// Rows of q: those that pieces of work begin with are done.
struct RowRange {
  size_t first = 0, end = ~size_t{0};
};

// out (rows, q_heads, dim of V) = attention of q (rows, q_heads, dim of K), after `fresh` was packed, if it is given.
// Tokens before the window are not read: tables may hold any page for them. Unless `exact`, many queries may be
// multiplied in bf16 on matrix units. Beside packed K and V, queries and weights may be rounded to 16 bits: see
// IntegerAttention. With `alone` each query is attended to by itself: the same bits beside any others. A call
// may be made in parts, whose ranges of rows follow each other from 0 on.
void attend(const Store& k, const Store& v, const Heads& heads, const Sequences& sequences, const PageTables& tables,
            const Logits& logits, const float* q, size_t q_heads, const Fresh* fresh, float* out, bool exact,
            bool alone, int threads, RowRange range = {});

}  // namespace fewbit
