// Tokens that a chain of samplers has left: a row of the whole vocabulary, or keys of a few tokens, likeliest first.
// Samplers take what is cheaper; a row is ranked as a whole only if nothing less will do.
#pragma once
#include <cstddef>
#include <cstdint>

#include "chain_passes.h"

namespace fewbit {

class ChainCandidates {
 public:
  // `x` is changed.
  ChainCandidates(float* x, size_t n);

  bool is_ranked() const { return ranked_; }
  bool empty();
  float* row();  // the whole row, with the factor in it; it may be changed
  void scale(double factor) { by_ *= factor; }

  void keep_top(size_t most);             // the largest logits
  void keep_above(double least);          // logits of at least this much, before the factor
  void keep_likely(double weight);        // at least so many times as likely as the likeliest
  void keep_share(double share);          // the likeliest that together have this share of the weight
  void keep_typical(double share);        // those nearest to the entropy that have it
  void drop_likely(double threshold);     // all that are at least so likely but the least likely of them
  void keep_n_sigma(double sigmas);       // at most so many standard deviations below the largest
  void keep_surprise(double bits);        // at most so many bits of surprise, at least one token
  double entropy_share();                 // of the largest entropy; below 0: there is one candidate
  double draw(double uniform, Key& key);  // the token and its probability

 private:
  double top();
  double weight(Key key);  // of a candidate
  WeightSums sums();
  size_t find_top(size_t most);  // ranks the largest of a row into keys_
  void rank_all();
  // The number of ranked candidates, from the first on, whose weights together pass enough(sum). Ranks no more of a row
  // than it takes.
  template <class Enough>
  size_t count_until(double total, Enough enough, double& last);
  void changed() { has_extent_ = false; }

  float* x_;
  size_t n_;
  double by_ = 1;  // logits are x * by
  bool ranked_ = false, has_extent_ = false;
  Extent extent_{};
  float* groups_;
  Key* keys_;  // of the ranked candidates
  size_t count_ = 0;
  const Passes& passes_;
};

}  // namespace fewbit
