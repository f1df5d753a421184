// Gradients of a single score: from the score and the gradient of its probability to the operands of backward's
// products (docs/backward.md has the derivation).
#pragma once

#include "cuda/device/score/score.cuh"
#include "portable/backward_params.hpp"
#include "user.hpp"  // user::score_mod and user::score_mod_gradient: the caller's source

namespace tessella::device {

using portable::BackwardParams;
using portable::BackwardRow;

// P of a score. Subtracts in units of the scores: a large LSE times log2(e) would be rounded.
__device__ __forceinline__ float prob(float score, float scale, float lse) {
  return ptx::exp2(__fmaf_rn(score, scale, -lse) * kLog2e);
}

struct ScoreGradients {
  float prob;          // P after dropout, whose factor is left out
  float d_unmodified;  // of the score before the caller's modification
  float d_product;     // of scale q . k
};

template <ScoreConfig C>
class ScoreGradient {
 public:
  using Score = device::Score<C>;
  using Origin = typename Score::Origin;

  __device__ ScoreGradient(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t head_idx)
      : p_(p), batch_idx_(batch_idx), head_idx_(head_idx), score_(p.scores, p.arrays, sequence, batch_idx, head_idx) {}

  __device__ Origin origin(int32_t query, int32_t key) const { return score_.origin(query, key); }

  // product: q . k with the sign of scale; d_prob: d_out . v. Both are for the query `row` rows and the key `column`
  // columns after the origin, which may lie past the lengths.
  __device__ __forceinline__ ScoreGradients of(float product, float d_prob, const BackwardRow& of_row, bool is_kept,
                                               const Origin& origin, int32_t row, int32_t column) const {
    float tanh = 0;
    const float unmodified = score_.unmodified(product, origin, row, column, tanh);
    const auto at = score_.template position<false>(origin, row, column);
    const auto q_minus_k = static_cast<float>(at.query - at.key);
    float score = unmodified;
    if constexpr (C.score_mod) {
      score = user::score_mod(unmodified, batch_idx_, head_idx_, at.query, at.key, q_minus_k, Arrays(p_.arrays));
    }
    const float prob = device::prob(score, score_.scale(), of_row.lse);
    if constexpr (C.dropout) d_prob = is_kept ? d_prob * p_.scores.keep_scale : 0.0f;
    ScoreGradients gradients;
    gradients.prob = !C.dropout || is_kept ? prob : 0.0f;
    gradients.d_unmodified = prob * (d_prob - of_row.delta);
    if constexpr (C.score_mod) {
      gradients.d_unmodified = user::score_mod_gradient(unmodified, gradients.d_unmodified, batch_idx_, head_idx_,
                                                        at.query, at.key, q_minus_k, Arrays(p_.arrays));
    }
    gradients.d_product = C.softcap ? gradients.d_unmodified * (1 - tanh * tanh) : gradients.d_unmodified;
    return gradients;
  }

  // The factor on ALiBi's slope in a score, without its sign.
  __device__ float distance(const Origin& origin, int32_t row, int32_t column) const {
    return score_.distance(origin, row, column);
  }

 private:
  const BackwardParams& p_;
  int32_t batch_idx_, head_idx_;
  Score score_;
};

}  // namespace tessella::device
