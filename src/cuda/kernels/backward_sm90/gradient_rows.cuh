// Gradients of a warp's scores S = Q K^T: 16 queries times 8 Blocks keys, in the layout of accumulators (ptx/mma.cuh).
#pragma once

#include "cuda/device/score/band_mask.cuh"
#include "cuda/kernels/backward_sm90/gradient_operands.cuh"

namespace tessella::device {

template <ScoreConfig C, int Blocks>
struct GradientRows {
  using Gradient = ScoreGradient<C>;
  using Scores = float[Blocks][4];
  using Left = uint32_t[Blocks / 2][4];
  static constexpr bool kIsPlain = device::Score<C>::kIsPlain && !C.dropout;

  const BackwardParams& p;
  const Sequence& sequence;
  int32_t batch_idx, head_idx;
  int32_t query, key;  // the warp's first query, the tile's first key
  uint32_t s_rows;     // of the warp's first query
  bool has_elements;   // element masks hide some
  int lane;

  // A bit for each of the lane's scores: whether it is visible. A whole warp calls it.
  __device__ __forceinline__ uint32_t find_visible() const {
    uint32_t columns[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange of = load_row_keys(s_rows, lane / 4 + r * 8);
      columns[r] = columns_in<Blocks * 8>(of, key, p.masks.keep_first, lane);
    }
    if constexpr (C.mask == MaskLevel::bits) {
      if (has_elements)
        hide_by_elements<C, Blocks * 8>(p.masks, p.arrays, sequence, batch_idx, head_idx, query, key, columns);
    }
    uint32_t visible = 0;
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) visible |= (columns[r] >> j * 2 & 3) << (j * 4 + r * 2);
    }
    ptx::forget(visible);  // a word, not 32 predicates
    return visible;
  }
  // Computes P in place of the products, which have q's sign. Where kIsPlain. visible: from find_visible(), or all
  // bits.
  __device__ __forceinline__ void find_probs(uint32_t visible, Scores& products) const {
    static_assert(kIsPlain);
    const float scale = copysignf(Score<C>(p.scores, p.arrays, sequence, 0, 0).scale(), p.scores.scale);
    const float lse[2] = {load_lse(s_rows, lane / 4), load_lse(s_rows, lane / 4 + 8)};
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n) products[j][n] = prob(products[j][n], scale, lse[n / 2]);
    }
    hide(products, visible);
  }
  // Computes dS in place of dP, and as a left operand. Where kIsPlain.
  __device__ __forceinline__ void find_d_scores(uint32_t visible, const Scores& probs, Scores& d_probs,
                                                Left& d_scores) const {
    static_assert(kIsPlain);
    const float delta[2] = {load_delta(s_rows, lane / 4), load_delta(s_rows, lane / 4 + 8)};
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n) d_probs[j][n] = probs[j][n] * (d_probs[j][n] - delta[n / 2]);
    }
    hide(d_probs, visible);
    pack<C.elements.q>(d_probs, d_scores);
  }
  // The same from the products, of scores with features. slope: sums up the gradient of ALiBi's slope.
  __device__ __forceinline__ void find_d_scores_of_products(bool is_full, Scores& products, const Scores& d_probs,
                                                            Left& d_scores, float& slope) const {
    if (p.scores.scale < 0) negate(products);
    if (is_full) {
      find_pairs<false>(products, d_probs, d_scores, slope);
    } else {
      find_pairs<true>(products, d_probs, d_scores, slope);
    }
  }

 private:
  __device__ __forceinline__ bool is_visible(const BackwardRow& of_row, int32_t at_query, int32_t at_key) const {
    return device::is_visible<C>(p, sequence, batch_idx, head_idx, of_row, has_elements, at_query, at_key);
  }

  template <bool IsMasked>
  __device__ __forceinline__ void find_pairs(const Scores& products, const Scores& d_probs, Left& d_scores,
                                             float& slope) const {
    const Gradient gradient(p, sequence, batch_idx, head_idx);
    const typename Gradient::Origin origin = gradient.origin(query + lane / 4, key + lane % 4 * 2);
    const BackwardRow rows[2] = {load_row(s_rows, lane / 4), load_row(s_rows, lane / 4 + 8)};
#pragma unroll
    for (int pair = 0; pair < Blocks; pair += 2) {
      portable::Random4 random;
      if constexpr (C.dropout) {
        const uint64_t head = dropout_head(p.sequences, {batch_idx, head_idx, 0, 0});
        random = dropout_of(p.scores).bits(head, query / 16, key / 16 + pair / 2, lane);
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {  // row word % 2, block word / 2 of two
        const int r = word % 2, j = pair + word / 2;
        float of[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int down = r * 8, right = j * 8 + c;
          of[c] = 0;
          if (IsMasked && !is_visible(rows[r], origin.query + down, origin.key + right)) continue;
          bool keeps = true;
          if constexpr (C.dropout) keeps = (random.word[word] >> c * 16 & 0xFFFF) >= p.scores.dropout_threshold;
          const ScoreGradients gradients =
              gradient.of(products[j][r * 2 + c], d_probs[j][r * 2 + c], rows[r], keeps, origin, down, right);
          of[c] = gradients.d_product;
          if constexpr (C.alibi) slope -= gradients.d_unmodified * gradient.distance(origin, down, right);
        }
        d_scores[j / 2][j % 2 * 2 + r] = Multiply<C.elements.q>::pack(of[0], of[1]);
      }
      // Uses what some elements load before it loads more.
      if (C.bias || C.score_mod || C.mask == MaskLevel::bits) ptx::keep_loads_in_place();
    }
  }
};

}  // namespace tessella::device
