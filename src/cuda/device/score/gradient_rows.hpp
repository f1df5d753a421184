// Gradients of a warp's scores S = Q K^T: 16 queries times 8 Blocks keys, in the layout of accumulators (ptx/mma.hpp).
#pragma once

#include "cuda/device/score/gradient_operands.hpp"

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

  // Computes P in place of the products, which have q's sign. Where kIsPlain.
  __device__ __forceinline__ void find_probs(bool is_full, Scores& products) const {
    static_assert(kIsPlain);
    const float scale = copysignf(Score<C>(p.forward, sequence, 0, 0).scale(), p.forward.scale);
    for_each_score(is_full, [&](int j, int n, const BackwardRow& row, bool is_visible) {
      // Subtracts in units of the scores: a large LSE times log2(e) would be rounded.
      const float exponent = __fmaf_rn(products[j][n], scale, -row.lse);
      products[j][n] = is_visible ? ptx::exp2(exponent * kLog2e) : 0.0f;
    });
  }
  // Computes dS in place of dP, and as a left operand. Where kIsPlain.
  __device__ __forceinline__ void find_d_scores(bool is_full, const Scores& probs, Scores& d_probs,
                                                Left& d_scores) const {
    static_assert(kIsPlain);
    for_each_score(is_full, [&](int j, int n, const BackwardRow& row, bool is_visible) {
      d_probs[j][n] = is_visible ? probs[j][n] * (d_probs[j][n] - row.delta) : 0.0f;
    });
    pack<C.element>(d_probs, d_scores);
  }
  // The same from the products, of scores with features. slope: sums up the gradient of ALiBi's slope.
  __device__ __forceinline__ void find_d_scores_of_products(bool is_full, Scores& products, const Scores& d_probs,
                                                            Left& d_scores, float& slope) const {
    if (p.forward.scale < 0) negate(products);
    if (is_full) {
      find_pairs<false>(products, d_probs, d_scores, slope);
    } else {
      find_pairs<true>(products, d_probs, d_scores, slope);
    }
  }

 private:
  __device__ __forceinline__ BackwardRow row(int r) const {
    return load_backward_row(s_rows + (lane / 4 + r * 8) * 16);
  }
  __device__ __forceinline__ bool is_visible(const BackwardRow& of_row, int32_t at_query, int32_t at_key) const {
    return device::is_visible<C>(p, sequence, batch_idx, head_idx, of_row, has_elements, at_query, at_key);
  }

  // Calls use(j, n, row, is_visible) for each of the lane's scores.
  template <class Use>
  __device__ __forceinline__ void for_each_score(bool is_full, const Use& use) const {
    const BackwardRow rows[2] = {row(0), row(1)};
    const auto of_all = [&](const auto& is_visible_at) {
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
#pragma unroll
        for (int n = 0; n < 4; ++n) use(j, n, rows[n / 2], is_visible_at(n / 2, j * 8 + lane % 4 * 2 + n % 2));
        if (C.mask == MaskLevel::bits) ptx::keep_loads_in_place();
      }
    };
    if (is_full) {
      of_all([](int, int) { return true; });
    } else {
      of_all([&](int r, int column) { return is_visible(rows[r], query + lane / 4 + r * 8, key + column); });
    }
  }

  template <bool IsMasked>
  __device__ __forceinline__ void find_pairs(const Scores& products, const Scores& d_probs, Left& d_scores,
                                             float& slope) const {
    const Gradient gradient(p, sequence, batch_idx, head_idx);
    const typename Gradient::Origin origin = gradient.origin(query + lane / 4, key + lane % 4 * 2);
    const BackwardRow rows[2] = {row(0), row(1)};
#pragma unroll
    for (int pair = 0; pair < Blocks; pair += 2) {
      portable::Random4 random;
      if constexpr (C.dropout) {
        const uint64_t head = dropout_head(p.forward, {batch_idx, head_idx, 0, 0});
        random = dropout_of(p.forward).bits(head, query / 16, key / 16 + pair / 2, lane);
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
          if constexpr (C.dropout) keeps = (random.word[word] >> c * 16 & 0xFFFF) >= p.forward.dropout_threshold;
          const ScoreGradients gradients =
              gradient.of(products[j][r * 2 + c], d_probs[j][r * 2 + c], rows[r], keeps, origin, down, right);
          of[c] = gradients.d_product;
          if constexpr (C.alibi) slope -= gradients.d_unmodified * gradient.distance(origin, down, right);
        }
        d_scores[j / 2][j % 2 * 2 + r] = Multiply<C.element>::pack(of[0], of[1]);
      }
      // Uses what some elements load before it loads more.
      if (C.bias || C.score_mod || C.mask == MaskLevel::bits) ptx::keep_loads_in_place();
    }
  }
};

}  // namespace tessella::device
