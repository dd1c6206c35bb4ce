// A model's step, recorded once: operations on buffers of rows. It runs for any ragged batch of tokens; between the
// operations nothing is allocated and no Python runs. Pointers and sizes have been checked by the caller.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "attention.h"
#include "collective.h"
#include "experts.h"
#include "linear.h"
#include "low_rank.h"
#include "recurrent.h"
#include "row_maths.h"
#include "workspace.h"

namespace fewbit {

// Rows that come from outside in the place of those of some tokens, or added to them.
struct Inserted {
  const int32_t* tokens = nullptr;
  size_t count = 0;
  const float* rows = nullptr;
};

struct Step {  // the last tokens of some sequences
  const int32_t* tokens;
  size_t count;
  Sequences sequences;
  const PageTables* groups;       // page tables of each group of layers
  const int32_t* logits_indices;  // rows whose logits are wanted
  size_t logits_count;
  const int32_t *reads, *writes;  // slots of the sequences' states; null: no layer has one
  const float* given = nullptr;   // rows that another plan made, for those that begin with `Given`
  const int32_t* tops = nullptr;  // how many of the largest logits of each row are wanted; 0, or null: all
  StepAdapters adapters = {};
  const Inserted* inserted = nullptr;  // by part; null: there is nothing to insert
  const int32_t* axes = nullptr;       // (axes, tokens) positions for ropes that have axes; null: all are the position
  const Span* spans = nullptr;         // of each token; null: each is its own
};

// Angles of rotary positions: position * inv_freq[pair].
struct Rope {
  std::vector<double> inv_freq;
  float scale;                // of cosines and sines
  bool neox;                  // which values are pairs: see kernels/rows.h
  std::vector<uint8_t> axes;  // which of a token's positions each pair is rotated by; none: there is one
};

namespace plan {

using Buffer = size_t;

struct Weight {  // a packed matrix, by the number of its format
  size_t format;
  Layout at;
  const uint8_t* data;
  size_t n, k;
};
struct RowNorm {
  const float* weight = nullptr;
  float eps = 0;
};
struct Term {
  Weight w;
  Buffer out;
  const float* bias = nullptr;
  bool adds = false;  // `residual` is added
  Buffer residual = 0;
};
struct Embed {
  Weight w;
  float scale;
  Buffer out;
};
struct Linear {  // terms of the same input
  Buffer in;
  RowNorm norm;
  Activations at_least;  // where the others are less exact
  std::vector<Term> terms;
  const float* norms = nullptr;  // of the rows of the only term, for logits: see logits.h
};
struct Gated {
  Buffer in;
  RowNorm norm;
  Weight gate, up;
  Gate kind;
  Buffer out;
};
struct ApplyRope {  // rotary positions
  Buffer in, out;
  size_t heads, dim, rope;
};
struct Attend {  // keeps k and v in the cache, unless another one did, then reads it
  size_t k_format, v_format;
  Store k_store, v_store;
  Heads heads;
  size_t group, q_heads;  // whose page tables, and heads of q
  Logits logits;
  Buffer q, k, v, out;
  bool keep;
  bool spans;
};
struct Norm {  // of each head
  Buffer in;
  RowNorm norm;
  size_t heads;
  Buffer out;
};
struct LayerNorm {
  Buffer in;
  const float *weight, *bias;  // no bias: null
  float eps;
  Buffer out;
};
struct Mapped {
  Buffer in;
  Map map;
  float by;
  const float* vector;
  Buffer out;
};
struct Positions {  // rows of a table, by position
  Weight w;
  Buffer out;
};
struct Columns {  // some of each head
  Buffer in;
  size_t start, width, heads;
  Buffer out;
};
struct Join {  // each head of a, and after it that of b, or the only one of b
  Buffer a, b;
  size_t heads, b_heads;
  Buffer out;
};
struct LinearHeads {  // a matrix for each head
  Buffer in;
  std::vector<Weight> heads;
  Buffer out;
};
struct ExpertWeight {  // matrices of all experts; `w` is the first of them
  Weight w;
  const float* bias = nullptr;
};
struct RoutedExperts {
  Buffer x, scores;
  Routing routing;
  bool gated;
  GateKind kind;
  Map activation;  // where they are not gated
  ExpertWeight gate, up, down;
  Buffer out;
};
struct Add {
  Buffer a, b, out;
};
struct GateOf {  // gate(a) * b
  Buffer a, b;
  GateKind kind;
  Buffer out;
};
struct ConvRows {
  Conv conv;
  Buffer in, out;
};
struct DeltaRows {
  DeltaRule rule;
  Buffer q, k, v, a, b, out;
};
struct ScanRows {
  Scan scan;
  Buffer x, dt, b, c, out;
};
struct Gather {  // the rows of logits_indices
  Buffer in, out;
};
struct Given {  // the rows that a step brings
  Buffer out;
};

struct Insert {  // rows of a step's part, in the place of those of some tokens or added to them
  Buffer in;
  size_t part;
  bool adds;
  Buffer out;
};

struct Collective {  // a sum over ranks, or the columns of all of them side by side
  Buffer in;
  ThreadCollective* group;
  size_t rank;
  std::optional<size_t> first;  // the first column of this rank; none: a sum
  Buffer out;
};

struct LowRank {  // terms of adapters, added to products of `in`
  Buffer in;
  std::vector<std::pair<size_t, Buffer>> products;  // numbers of products, and what is added to
};
struct LowRankRows {  // the same for rows of a table
  size_t product, count;
  Buffer out;
};

using Op = std::variant<Embed, Linear, Gated, ApplyRope, Attend, Norm, Add, GateOf, Gather, LayerNorm, Mapped,
                        Positions, Columns, Join, LinearHeads, RoutedExperts, ConvRows, DeltaRows, ScanRows, Given,
                        LowRank, LowRankRows, Collective, Insert>;

}  // namespace plan

class Plan {
 public:
  // `batch_invariant`: a token's rows have the same bits beside any other tokens.
  explicit Plan(bool batch_invariant = false) : batch_invariant_(batch_invariant) {}
  // A buffer of rows: one for each token, or one for each of logits_indices. Buffers of a slot share its memory.
  plan::Buffer buffer(size_t width, bool logits_only, size_t slot);
  size_t width(plan::Buffer b) const { return buffers_.at(b).width; }
  bool logits_only(plan::Buffer b) const { return buffers_.at(b).logits_only; }
  size_t slot(plan::Buffer b) const { return buffers_.at(b).slot; }
  size_t buffers() const { return buffers_.size(); }
  size_t ropes() const { return ropes_.size(); }
  size_t rope(Rope rope);
  const Rope& rope_at(size_t i) const { return ropes_.at(i); }
  void add(plan::Op op) { ops_.push_back(std::move(op)); }
  // Layers of this group keep K and V in pages of so many tokens, in page tables of their own.
  void set_page_tokens(size_t group, size_t page_tokens);
  // The buffer of the result, alone in its slot: its rows go to where `run` is told.
  void set_result(plan::Buffer b) { result_ = b; }
  plan::Buffer result() const { return result_; }

  void run(const Step& step, float* result, Activations activations, int threads);
  // A step in slices: some of it, for about so many seconds, from its start or from where the slice before it ended.
  // Whether it is done. Between its slices nothing else is run, and each brings the same step. The same bits as `run`.
  bool run_slice(const Step& step, float* result, Activations activations, int threads, bool resumes, double seconds);

  // Seconds of each operation, summed up over runs, while it is on.
  void profile(bool on);
  std::vector<std::pair<std::string, double>> seconds() const;
  // Bytes of the experts that were read, summed up over runs.
  size_t expert_bytes() const { return expert_bytes_; }

 private:
  struct Rows {
    size_t width;
    bool logits_only;
    size_t slot;
    float* data = nullptr;
  };
  struct Run;
  struct Place {  // how far a step in slices has come: the next operation, and the next part of it
    size_t op = 0, part = 0;
    size_t rows = 0, logits = 0;  // of the step; no rows: there is none
  };
  void begin(const Run& run, float* result);
  void run_part(const Run& run, size_t op, size_t part);
  void find_memory(const Step& step);
  void trim();

  std::vector<Rows> buffers_;
  std::vector<Workspace> slots_;
  std::vector<size_t> slot_sizes_;
  std::vector<Rope> ropes_;
  std::vector<plan::Op> ops_;
  std::vector<size_t> page_tokens_;  // of each group; 0: no operation reads it
  std::vector<double> seconds_;
  plan::Buffer result_ = 0;
  Place place_;
  bool profiling_ = false;
  size_t expert_bytes_ = 0;
  bool batch_invariant_;
  // Made anew for each step, in memory that is kept.
  std::vector<int64_t> positions_;
  std::vector<Span> spans_;
  std::vector<std::vector<int64_t>> kv_slots_;  // of each group
  std::vector<Workspace> angles_;
  Workspace normed_;
  LowRankStep low_rank_;
};

}  // namespace fewbit
