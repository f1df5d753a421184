// Gradients of a warp's scores S^T = K Q^T: MBlocks times 16 keys, Blocks times 8 queries, in the layout of
// accumulators (ptx/mma.cuh).
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/score/backward_row.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/gradient.cuh"
#include "cuda/device/score/mask.cuh"
#include "cuda/device/tile/keys.cuh"

namespace tessella::device {

using portable::MaskLevel;

// True if the band shows the key to the query whose row is of_row. Both may lie outside the sequence.
__device__ __forceinline__ bool is_in_band(const BackwardParams& p, const BackwardRow& of_row, int32_t key) {
  return KeyRange{of_row.begin, of_row.end}.sees(key, p.masks.keep_first) && key >= 0;
}

// True if the query, whose row is of_row, sees the key. Both may lie outside the sequence. has_elements: element masks
// hide some of the tile.
template <ScoreConfig C>
__device__ __forceinline__ bool is_visible(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx,
                                           int32_t head_idx, const BackwardRow& of_row, bool has_elements,
                                           int32_t query, int32_t key) {
  if constexpr (C.mask != MaskLevel::bits) return is_in_band(p, of_row, key);
  return is_in_band(p, of_row, key) &&
         (!has_elements || is_visible<C>(p.masks, p.arrays, sequence, batch_idx, head_idx, query, key));
}

template <ScoreConfig C, int MBlocks, int Blocks>
struct GradientTile {
  using Gradient = ScoreGradient<C>;
  using Scores = float[MBlocks][Blocks][4];
  static constexpr bool kHasMap = C.mask == MaskLevel::bits;
  // Scores are products of q and k, and gradients of probabilities are products too.
  static constexpr bool kIsPlain = device::Score<C>::kIsPlain && !C.dropout;
  static constexpr bool kLoadsElements = C.bias || C.score_mod || kHasMap;

  const BackwardParams& p;
  const Sequence& sequence;
  int32_t batch_idx, head_idx;
  int32_t query, key;  // the warp's first ones; a key before the sequence's first one is negative
  uint32_t s_rows;     // of the warp's first query
  bool has_elements;   // element masks hide some
  int lane;

  // Calls use(m, j, r, first, second, origin) with the gradients of every pair of neighbouring queries: row r (0 or 1)
  // of the lane in 16-key block m, block j of 8 queries. products: without scale but with its sign. IsMasked: some
  // score may be hidden. AnyKey: the first key is no multiple of 16.
  template <bool IsMasked, bool AnyKey = false, class Use>
  __device__ __forceinline__ void for_each_pair(const Scores& products, const Scores& d_probs, const Gradient& gradient,
                                                const Use& use) const {
    const typename Gradient::Origin origin = gradient.origin(query + lane % 4 * 2, key + lane / 4);
#pragma unroll
    for (int pair = 0; pair < Blocks; pair += 2) {
      BackwardRow rows[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_two_rows(s_rows, (pair + i) * 8 + lane % 4 * 2, rows[i]);
#pragma unroll
      for (int m = 0; m < MBlocks; ++m) {
        const TileDropout<AnyKey> kept(*this, query + pair * 8, key + m * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i / 2, j = pair + half, r = i % 2;
          // As late as this: with the bounds of all four queries some tiles would spill.
          if (IsMasked && r == 0) load_two_keys(s_rows, j * 8 + lane % 4 * 2, rows[half]);
          ScoreGradients of[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int n = r * 2 + c, down = j * 8 + c, right = m * 16 + r * 8;
            const int32_t at_query = origin.query + down, at_key = origin.key + right;
            of[c] = {0, 0, 0};
            if (IsMasked && !is_visible(rows[half][c], at_query, at_key)) continue;
            bool keeps = true;
            if constexpr (C.dropout && AnyKey) {
              keeps = dropout_of(p.scores).keeps(kept.head_idx, at_query, at_key);
            } else if constexpr (C.dropout) {
              keeps = kept.bits.has(half, n);
            }
            of[c] = gradient.of(products[m][j][n], d_probs[m][j][n], rows[half][c], keeps, origin, down, right);
          }
          use(m, j, r, of[0], of[1], origin);
        }
        // Uses what some elements load before it loads more: the loads of a whole tile would fill all registers.
        if (kLoadsElements) ptx::keep_loads_in_place();
      }
    }
  }

  __device__ __forceinline__ bool is_in_band(const BackwardRow& of_row, int32_t at_key) const {
    return device::is_in_band(p, of_row, at_key);
  }
  __device__ __forceinline__ bool is_visible(const BackwardRow& of_row, int32_t at_query, int32_t at_key) const {
    return device::is_visible<C>(p, sequence, batch_idx, head_idx, of_row, has_elements, at_query, at_key);
  }

 private:
  // Dropout's bits for 16 queries and 16 keys.
  template <bool AnyKey>
  struct TileDropout {
    uint64_t head_idx = 0;
    DropoutBits bits;
    __device__ __forceinline__ TileDropout(const GradientTile& of, int32_t query, int32_t key) {
      if constexpr (C.dropout) head_idx = dropout_head(of.p.sequences, {of.batch_idx, of.head_idx, 0, 0});
      if constexpr (C.dropout && !AnyKey) {
        bits = DropoutBits(dropout_of(of.p.scores), head_idx, query / 16, key / 16, of.lane);
      }
    }
  };
};

}  // namespace tessella::device
