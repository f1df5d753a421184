// P^T and dS^T of 64 keys and 8 Blocks queries, a warpgroup's, as left operands of its matrix instructions.
#pragma once

#include "cuda/device/score/gradient_tile.cuh"
#include "cuda/device/tile/multiply.cuh"

namespace tessella::device {

// Accumulators as left operands (ptx/wgmma.cuh).
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

// Bits of a lane's scores, at most 32, in the order of accumulators.
__device__ constexpr uint32_t score_bit(int j, int n) { return 1u << (j * 4 + n); }

// Writes zeros for scores whose bit is not set.
template <int Blocks>
__device__ __forceinline__ void hide(float (&scores)[Blocks][4], uint32_t visible) {
  static_assert(Blocks * 4 <= 32);
  if (visible == ~0u) return;
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
#pragma unroll
    for (int n = 0; n < 4; ++n) scores[j][n] = (visible & score_bit(j, n)) != 0 ? scores[j][n] : 0.0f;
  }
}

template <ScoreConfig C, int Blocks>
struct GradientOperands : GradientTile<C, 1, Blocks> {
  using Tile = GradientTile<C, 1, Blocks>;
  using Tile::p, Tile::sequence, Tile::query, Tile::key, Tile::s_rows, Tile::lane;
  using typename Tile::Gradient, typename Tile::Scores;
  using Left = uint32_t[Blocks / 2][4];
  static constexpr Element kElement = C.elements.q;

  // A bit for each of the lane's scores: whether it is visible. A whole warp calls it.
  __device__ __forceinline__ uint32_t find_visible() const {
    uint32_t visible = 0;
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      BackwardRow rows[2];
      load_two_keys(s_rows, j * 8 + lane % 4 * 2, rows);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (Tile::is_in_band(rows[c], key + lane / 4 + r * 8)) visible |= score_bit(j, r * 2 + c);
        }
      }
      ptx::keep_loads_in_place();  // of all rows at once would fill all registers
    }
    if constexpr (Tile::kHasMap) {
      if (Tile::has_elements) visible &= find_elements();
    }
    ptx::forget(visible);  // a word, not 32 predicates
    return visible;
  }

  // The two halves of find_both() where kIsPlain, the second one's numbers ready later. visible: from find_visible(),
  // or all bits. Computes P^T in place of the products, which have q's sign, and as a left operand.
  __device__ __forceinline__ void find_probs(uint32_t visible, Scores& products, Left& probs) const {
    static_assert(Tile::kIsPlain);
    // Exponents of 2 by one multiply-add. That rounds LSE log2(e), by at most as much as LSE itself was, and
    // scale log2(e), by as much of the score. prob() does neither: features need natural scores.
    const float scale = copysignf(Score<C>(p.scores, p.arrays, sequence, 0, 0).scale(), p.scores.scale) * kLog2e;
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      float lse[2];
      load_two_lse(s_rows, j * 8 + lane % 4 * 2, lse);
#pragma unroll
      for (int c = 0; c < 2; ++c) lse[c] *= kLog2e;
#pragma unroll
      for (int n = 0; n < 4; ++n) products[0][j][n] = ptx::exp2(__fmaf_rn(products[0][j][n], scale, -lse[n % 2]));
    }
    hide(products[0], visible);
    pack<kElement>(products[0], probs);
  }
  // Computes dS^T in place of dP^T, and as a left operand.
  __device__ __forceinline__ void find_d_scores(uint32_t visible, const Scores& probs, Scores& d_probs,
                                                Left& d_scores) const {
    static_assert(Tile::kIsPlain);
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      float delta[2];
      load_two_deltas(s_rows, j * 8 + lane % 4 * 2, delta);
#pragma unroll
      for (int n = 0; n < 4; ++n) d_probs[0][j][n] = probs[0][j][n] * (d_probs[0][j][n] - delta[n % 2]);
    }
    hide(d_probs[0], visible);
    pack<kElement>(d_probs[0], d_scores);
  }
  // Both at once, of scores with features. Products have q's sign.
  __device__ __forceinline__ void find_both(bool is_full, Scores& products, const Scores& d_probs, Left& probs,
                                            Left& d_scores) const {
    if (p.scores.scale < 0) negate(products[0]);
    const Gradient gradient(p, sequence, Tile::batch_idx, Tile::head_idx);
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

 private:
  static constexpr int kKeys = 16;
  static constexpr ScoreConfig kRest = without_ranges(C);
  static constexpr bool kHasRows = num_masks(kRest) > 0 || C.element_masks.key_ranges;

  // The bits of scores that element masks show.
  __device__ __forceinline__ uint32_t find_elements() const {
    static_assert(Blocks == 8, "two queries a lane");
    uint32_t visible = ~0u;
    if constexpr (C.element_masks.query_ranges) visible = find_queries();
    if constexpr (kHasRows) visible &= find_keys();
    return visible;
  }

  // Those that query ranges show: the first lanes find the queries of a key each.
  __device__ __forceinline__ uint32_t find_queries() const {
    uint32_t visible = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t queries = queries_of_key(p.masks.elements.query_ranges, sequence, Tile::batch_idx, Tile::head_idx,
                                              query + half * 32, key + lane % kKeys);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t own = __shfl_sync(kAllLanes, queries, lane / 4 + r * 8) >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < Blocks / 2; ++j) visible |= (own >> j * 8 & 3) << ((half * Blocks / 2 + j) * 4 + r * 2);
      }
    }
    return visible;
  }

  // Those that the other masks show. Each lane finds the keys of two queries.
  __device__ __forceinline__ uint32_t find_keys() const {
    uint32_t keys = ~0u;  // of query `lane`, and above them of query lane + 32
    if constexpr (num_masks(kRest) > 0) {
      const ElementRows<kRest> elements(p.masks, p.arrays, sequence, Tile::batch_idx, Tile::head_idx, key, kKeys);
      keys = elements.is_whole() ? keys_of_queries<true>(elements) : keys_of_queries<false>(elements);
    }
    if constexpr (C.element_masks.key_ranges) {
      uint32_t in_ranges = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t own = keys_of_query(p.masks.elements.key_ranges, sequence, Tile::batch_idx, Tile::head_idx,
                                           query_of_lane(half), key);
        in_ranges |= (own & ptx::low_bits(kKeys)) << half * kKeys;
      }
      keys &= in_ranges;
    }
    uint32_t visible = 0;
#pragma unroll
    for (int j = 0; j < Blocks / 2; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t own = __shfl_sync(kAllLanes, keys, j * 8 + lane % 4 * 2 + c) >> lane / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if ((own >> r * 8 & 1) != 0) visible |= score_bit(j, r * 2 + c);
          if ((own >> (16 + r * 8) & 1) != 0) visible |= score_bit(j + Blocks / 2, r * 2 + c);
        }
      }
    }
    return visible;
  }

  __device__ int32_t query_of_lane(int half) const { return min(query + lane + half * 32, sequence.len_q - 1); }
  template <bool IsWhole>
  __device__ __forceinline__ uint32_t keys_of_queries(const ElementRows<kRest>& elements) const {
    uint32_t keys = 0;
#pragma unroll(IsWhole&& loads_words(kRest) ? 2 : 1)
    for (int half = 0; half < 2; ++half) {
      const int32_t i = query_of_lane(half);
#pragma unroll(IsWhole&& loads_words(kRest) ? 4 : 1)
      for (int at = 0; at < kKeys; at += kKeysAtOnce) {
        keys |= elements.template visible<IsWhole>(i, key + at) << (half * kKeys + at);
      }
    }
    return keys;
  }
};

}  // namespace tessella::device
