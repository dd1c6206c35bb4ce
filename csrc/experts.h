// Routed experts: each row goes to some of many feed-forward layers, and only those are read. Pointers and sizes have
// been checked by the caller.
#pragma once
#include "linear.h"
#include "row_maths.h"

namespace fewbit {

enum class Score { softmax, sigmoid, softmax_top };  // softmax_top: a softmax of the chosen ones
Score score_named(const std::string& name);

// Which experts a row goes to, and how much each of them counts: see `Routing` in ops/specs.py.
struct Routing {
  size_t count, top_k;
  Score score;
  bool normalize;
  double scale;
  const float* bias;  // of each expert, or null
  size_t groups, top_groups, group_top;
  const float* expert_scale;  // of the weights of each expert, or null
};

// The experts of a row, best first; of equal ones the first.
void route(const Routing& routing, const float* scores, uint32_t* chosen, float* weights);

struct Expert {  // a matrix of each expert, one after the other; `of_one` is the first of them
  Matrix of_one;
  const float* bias;  // (experts, n), or null
};
struct Experts {
  Routing routing;
  bool gated;  // down(kind(gate(x)) * up(x)), else down(activation(up(x)))
  GateKind kind;
  Map activation;
  Expert gate, up, down;
};

// out (rows, k) = what the experts of each row make of x (rows, k), weighted. Returns how many bytes of weights were
// read. `alone`: a row gets the same bits beside any others.
size_t run_experts(const Experts& experts, const float* x, const float* scores, size_t rows, bool alone, float* out,
                   Activations activations, int threads);

}  // namespace fewbit
