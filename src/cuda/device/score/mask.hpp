// Masks that are not an interval of keys, tested element by element, and the tile map that avoids the test in most
// tiles (score/classify.hpp makes it).
#pragma once

#include "cuda/device/ptx/order.hpp"
#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/arrays.hpp"
#include "cuda/device/score/softmax.hpp"
#include "cuda/device/tile/keys.hpp"
#include "portable/score_config.hpp"
#include "user.hpp"  // user::mask_mod: the caller's source

namespace tessella::device {

using portable::ScoreConfig;

// True if documents, dense mask, block map, draft mask and the caller's mask modification let query i see key j. Both
// are inside the lengths.
template <ScoreConfig C>
__device__ __forceinline__ bool is_visible(const portable::ForwardParams& p, const Sequence& s, int32_t batch_idx,
                                           int32_t head_idx, int32_t i, int32_t j) {
  const int64_t slot = s.slot_kv + j;
  const auto flag = [&](const portable::ScoreOperandParams& mask, int64_t q, int64_t kv) {
    return static_cast<const uint8_t*>(mask.data)[batch_idx * mask.batch_stride + head_idx * mask.head_stride +
                                                  q * mask.q_stride + kv * mask.kv_stride] != 0;
  };
  bool visible = true;
  if constexpr (C.documents) {
    const auto id = [&](const portable::TableParams& ids, int64_t row) {
      return static_cast<const int32_t*>(ids.data)[batch_idx * ids.batch_stride + row * ids.stride];
    };
    visible = id(p.document_q, s.row_q + i) == id(p.document_kv, s.row_kv + j);
  }
  if constexpr (C.dense_mask) visible = visible && flag(p.dense_mask, i, slot);
  if constexpr (C.block_map) {
    visible =
        visible && flag(p.block_map, p.block_map_q.quotient(i), p.block_map_kv.quotient(static_cast<int32_t>(slot)));
  }
  if constexpr (C.draft_mask) {
    const int32_t draft = j - (s.len_kv - s.len_q);
    visible = visible && (draft < 0 || flag(p.draft_mask, i, draft));
  }
  if constexpr (C.mask_mod) visible = visible && user::mask_mod(batch_idx, head_idx, i, j, Arrays(p));
  return visible;
}

// Clears from `visible` the bits of keys that the element masks hide. `visible` holds columns of a tile as
// columns_below() does, for rows lane / 4 and lane / 4 + 8 of a warp's 16.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void hide_by_elements(const portable::ForwardParams& p, const Sequence& s, int32_t batch_idx,
                                                 int32_t head_idx, int32_t first_q, int32_t first_kv,
                                                 uint32_t (&visible)[2]) {
  constexpr int kColumnsAtOnce = num_masks(C) > 1 ? 2 : 8;  // whose loads wait side by side: registers
  auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ptx::forget(lane);  // values derived from it are computed here, where it is rare, and hold no registers
  const auto sees = [&](int row, int32_t key) {
    return is_visible<C>(p, s, batch_idx, head_idx, min(first_q + row, s.len_q - 1), min(key, s.len_kv - 1));
  };
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    uint32_t columns = 0;
#pragma unroll kColumnsAtOnce
    for (int i = 0; i < TileKv / 4; ++i) {
      if (sees(r * 8 + lane / 4, first_kv + i / 2 * 8 + lane % 4 * 2 + i % 2)) columns |= 1u << i;
    }
    if (r == 0) visible[0] &= columns;
    if (r == 1) visible[1] &= columns;
  }
}

// The classes of the key tiles of a query tile.
__device__ __forceinline__ uint8_t* tile_classes(const portable::ForwardParams& p, int32_t batch_idx, int32_t head_idx,
                                                 int32_t tile_q_idx) {
  return p.tile_map + batch_idx * p.tile_map_batch_stride + head_idx * p.tile_map_head_stride +
         static_cast<int64_t>(tile_q_idx) * p.kv_tiles;
}
// The words of p.seen_keys for the tile with this class.
__device__ __forceinline__ uint32_t* seen_keys(const portable::ForwardParams& p, const uint8_t* tile_class) {
  return p.seen_keys + (tile_class - p.tile_map) * portable::kSeenWords;
}

}  // namespace tessella::device
