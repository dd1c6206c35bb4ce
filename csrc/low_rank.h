// Low-rank terms of products (LoRA): y += weight * scale * B A x, where each row of a step has adapters of its own.
#pragma once
#include <vector>

#include "low_rank_kernels.h"
#include "workspace.h"

namespace fewbit {

struct LowRankTerm {           // of one product
  Real real = Real::f32;       // f32, f16 or bf16
  const uint8_t* a = nullptr;  // (r, k), of an embedding table (tokens, r); null: the identity, r is k
  const uint8_t* b = nullptr;  // (n, r) in panels of kLowRankPanel rows, each of them (r, rows); null: r is n
  size_t r = 0, k = 0, n = 0;  // r 0: there is no term; of an embedding table k counts tokens
  float scale = 1;
  bool is_table = false;
};

struct AdapterRows {  // rows that use an adapter, in ascending order, and how much
  const int32_t* rows = nullptr;
  const float* weights = nullptr;
  size_t count = 0;
};

struct StepAdapter {
  const std::vector<LowRankTerm>* terms;  // by the number of the product
  AdapterRows tokens, logits;             // of all rows, and of those whose logits are wanted
};

struct StepAdapters {
  const StepAdapter* data = nullptr;
  size_t count = 0;
};

struct LowRankOutput {  // what is added to: rows of n values
  size_t product, n;
  float* y;
};

// What a step needs; its memory is kept.
class LowRankStep {
 public:
  // The terms of several products of the same rows x, of k values.
  void add(const std::vector<LowRankOutput>& outputs, const float* x, size_t k, bool logits_only,
           const StepAdapters& adapters, int threads);
  // The terms of rows of a table, by token.
  void add_rows(const LowRankOutput& output, const int32_t* tokens, const StepAdapters& adapters, int threads);

  size_t capacity() const { return t_.capacity(); }
  void release() { t_.release(); }
  std::vector<LowRankOutput>& outputs() {
    outputs_.clear();
    return outputs_;
  }

 private:
  struct Pair {  // an output and an adapter
    const LowRankTerm* term;
    const AdapterRows* rows;
    size_t output, first, t;  // its first item of work, and where its rows of t begin
  };
  void find_pairs(const std::vector<LowRankOutput>& outputs, bool logits_only, const StepAdapters& adapters);
  const Pair& pair_of(size_t item) const;
  void scale(const Pair& pair, size_t first, size_t count, float* t) const;
  void down(const Pair& pair, size_t block, const float* x, size_t k, float* t) const;
  void up(const std::vector<LowRankOutput>& outputs, const float* t, int threads) const;

  std::vector<LowRankOutput> outputs_;
  std::vector<Pair> pairs_;
  size_t items_ = 0, t_size_ = 0, work_ = 0;
  Workspace t_;
};

}  // namespace fewbit
