// P^T and dS^T of 64 keys and 8 Blocks queries, a warpgroup's, as left operands of its matrix instructions.
#pragma once

#include "cuda/device/score/gradient_tile.hpp"
#include "cuda/device/tile/multiply.hpp"

namespace tessella::device {

// Accumulators as left operands (ptx/wgmma.hpp).
template <Element E, int Blocks>
__device__ __forceinline__ void pack(const float (&scores)[Blocks][4], uint32_t (&left)[Blocks / 2][4]) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      left[j / 2][j % 2 * 2 + r] = Multiply<E>::pack(scores[j][r * 2], scores[j][r * 2 + 1]);
    }
  }
}

template <int Blocks>
__device__ __forceinline__ void negate(float (&scores)[Blocks][4]) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = -scores[j][i];
  }
}

template <ScoreConfig C, int Blocks>
struct GradientOperands : GradientTile<C, 1, Blocks> {
  using Tile = GradientTile<C, 1, Blocks>;
  using Tile::p;
  using typename Tile::Gradient, typename Tile::Scores;
  using Left = uint32_t[Blocks / 2][4];
  static constexpr Element kElement = C.element;

  // Computes P^T in place of the products, which have q's sign, and as a left operand. Where kIsPlain. visible: from
  // find_visible(), or all bits.
  __device__ __forceinline__ void find_probs(uint32_t visible, Scores& products, Left& probs) const {
    const float scale = copysignf(Score<C>(p.forward, this->sequence, 0, 0).scale(), p.forward.scale);
    Tile::exponentiate(products, scale);
    Tile::hide(products, visible);
    pack<kElement>(products[0], probs);
  }
  // Computes dS^T in place of dP^T, and as a left operand. Where kIsPlain.
  __device__ __forceinline__ void find_d_scores(uint32_t visible, const Scores& probs, Scores& d_probs,
                                                Left& d_scores) const {
    Tile::multiply(probs, d_probs);
    Tile::hide(d_probs, visible);
    pack<kElement>(d_probs[0], d_scores);
  }
  // Both at once, of scores with features. Products have q's sign.
  __device__ __forceinline__ void find_both(bool is_full, Scores& products, const Scores& d_probs, Left& probs,
                                            Left& d_scores) const {
    if (p.forward.scale < 0) negate(products[0]);
    const Gradient gradient(p, this->sequence, this->batch_idx, this->head_idx);
    const auto use = [&](int, int j, int r, const ScoreGradients& first, const ScoreGradients& second, const auto&) {
      probs[j / 2][j % 2 * 2 + r] = Multiply<kElement>::pack(first.prob, second.prob);
      d_scores[j / 2][j % 2 * 2 + r] = Multiply<kElement>::pack(first.d_product, second.d_product);
    };
    if (is_full) {
      Tile::template for_each_pair<false>(products, d_probs, gradient, use);
    } else {
      Tile::template for_each_pair<true>(products, d_probs, gradient, use);
    }
  }
};

}  // namespace tessella::device
