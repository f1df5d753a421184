// Masks that are not an interval of keys, tested in words or element by element, and the tile map that avoids the test
// in most tiles (kernels/classify/classify.cuh makes it).
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/score/arrays.cuh"
#include "cuda/device/score/ranges.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/masks_params.hpp"
#include "portable/score_config.hpp"
#include "portable/tile_map_params.hpp"
#include "user.hpp"  // user::mask_mod: the caller's source

namespace tessella::device {

using portable::ScoreConfig;

// True if the element masks and the caller's mask modification let query i see key j. Both are inside the lengths.
template <ScoreConfig C>
__device__ __forceinline__ bool is_visible(const portable::MasksParams& masks, const portable::ArraysParams& arrays,
                                           const Sequence& s, int32_t batch_idx, int32_t head_idx, int32_t i,
                                           int32_t j) {
  bool visible = portable::shown_by<C.element_masks>(masks.elements, s, batch_idx, head_idx, i, j);
  if constexpr (C.mask_mod) visible = visible && user::mask_mod(batch_idx, head_idx, i, j, Arrays(arrays));
  return visible;
}

// Those that are no ranges, which warps hold against their scores as ranges.cuh does.
__device__ constexpr ScoreConfig without_ranges(const ScoreConfig& c) {
  ScoreConfig rest = masks_of(c);
  rest.element_masks.key_ranges = rest.element_masks.query_ranges = false;
  return rest;
}
// Those that ElementRows has no way of its own for.
__device__ constexpr ScoreConfig without_own_ways(const ScoreConfig& c) {
  ScoreConfig rest = masks_of(c);
  portable::ElementMaskSet& set = rest.element_masks;
  set.documents = set.dense_mask = set.block_map = set.key_ranges = false;
  return rest;
}

inline constexpr int kKeysAtOnce = 4;  // of which ElementRows finds bits: a word of a dense mask
inline constexpr uint32_t kAllAtOnce = (1u << kKeysAtOnce) - 1;

// The highest bit of each byte that is not 0.
__device__ __forceinline__ uint32_t nonzero_bytes(uint32_t bytes) {
  return (((bytes & 0x7F7F7F7F) + 0x7F7F7F7F) | bytes) & 0x80808080;
}
// Those four bits as bits 0 to 3: each is a term of the product's highest four, and no sum carries.
__device__ __forceinline__ uint32_t bits_of_bytes(uint32_t highest) { return highest * 0x00204081 >> 28; }

// Element masks in rows of queries, four neighbouring keys at a time. batch_idx, head_idx: of the sequence s.
template <ScoreConfig C>
class ElementRows {
 public:
  // [first_key, first_key + keys): all that are asked for; first_key is a multiple of 4.
  __device__ __forceinline__ ElementRows(const portable::MasksParams& masks, const portable::ArraysParams& arrays,
                                         const Sequence& s, int32_t batch_idx, int32_t head_idx, int32_t first_key,
                                         int32_t keys)
      : masks_(masks), arrays_(arrays), s_(s), batch_idx_(batch_idx), head_idx_(head_idx) {
    is_whole_ = first_key + keys <= s.len_kv;
    if constexpr (C.element_masks.dense_mask) {
      const portable::DenseMask& mask = masks.elements.dense_mask;
      dense_ = mask.data + batch_idx * mask.batch_stride + head_idx * mask.head_stride + s.slot_kv * mask.kv_stride;
      const auto all = reinterpret_cast<uint64_t>(dense_) | static_cast<uint64_t>(mask.q_stride);
      is_whole_ = is_whole_ && mask.kv_stride == 1 && all % kKeysAtOnce == 0;
    }
    if constexpr (C.element_masks.documents) {
      const portable::Documents::Ids& ids = masks.elements.documents.kv;
      ids_ = ids.data + batch_idx * ids.batch_stride + s.row_kv * ids.stride;
      is_whole_ = is_whole_ && ids.stride == 1 && reinterpret_cast<uint64_t>(ids_) % sizeof(int4) == 0;
    }
  }
  // True if masks are read in whole words: visible<true>() may be called.
  __device__ bool is_whole() const { return is_whole_; }

  // Which of keys j to j + 3, a multiple of 4 on, the masks show to query i, a bit each; of keys past the sequence any.
  template <bool IsWhole>
  __device__ __forceinline__ uint32_t visible(int32_t i, int32_t j) const {
    uint32_t bits = kAllAtOnce;
    if constexpr (C.element_masks.dense_mask) bits &= in_dense<IsWhole>(i, j);
    if constexpr (C.element_masks.documents) bits &= in_documents<IsWhole>(i, j);
    if constexpr (C.element_masks.block_map) bits &= in_block_map(i, j);
    if constexpr (C.element_masks.key_ranges)
      bits &= keys_of_query(masks_.elements.key_ranges, s_, batch_idx_, head_idx_, i, j);
    constexpr ScoreConfig kOthers = without_own_ways(C);
    if constexpr (num_masks(kOthers) > 0) {
      bits &= each_key(
          j, [&](int32_t key) { return is_visible<kOthers>(masks_, arrays_, s_, batch_idx_, head_idx_, i, key); });
    }
    return bits;
  }
  __device__ __forceinline__ uint32_t visible(int32_t i, int32_t j) const {
    return is_whole_ && j + kKeysAtOnce <= s_.len_kv ? visible<true>(i, j) : visible<false>(i, j);
  }
  // Of a dense mask.
  __device__ __forceinline__ const uint8_t* dense_row(int32_t i) const {
    return dense_ + i * masks_.elements.dense_mask.q_stride;
  }

 private:
  // Bit k: of key j + k, or of the sequence's last one in place of a key past it.
  template <class IsVisible>
  __device__ __forceinline__ uint32_t each_key(int32_t j, const IsVisible& is_visible) const {
    uint32_t bits = 0;
#pragma unroll
    for (int key = 0; key < kKeysAtOnce; ++key) {
      if (is_visible(min(j + key, s_.len_kv - 1))) bits |= 1u << key;
    }
    return bits;
  }
  template <bool IsWhole>
  __device__ __forceinline__ uint32_t in_dense(int32_t i, int32_t j) const {
    const uint8_t* row = dense_row(i);
    if constexpr (IsWhole) return bits_of_bytes(nonzero_bytes(*reinterpret_cast<const uint32_t*>(row + j)));
    return each_key(j, [&](int32_t key) { return row[key * masks_.elements.dense_mask.kv_stride] != 0; });
  }
  template <bool IsWhole>
  __device__ __forceinline__ uint32_t in_documents(int32_t i, int32_t j) const {
    const portable::Documents& documents = masks_.elements.documents;
    const int32_t own = documents.q.at(batch_idx_, s_.row_q + i);
    if constexpr (IsWhole) {
      const int4 ids = *reinterpret_cast<const int4*>(ids_ + j);
      return (ids.x == own ? 1u : 0u) | (ids.y == own ? 2u : 0u) | (ids.z == own ? 4u : 0u) | (ids.w == own ? 8u : 0u);
    }
    return each_key(j, [&](int32_t key) { return ids_[key * documents.kv.stride] == own; });
  }
  // Most often the keys are of one entry.
  __device__ __forceinline__ uint32_t in_block_map(int32_t i, int32_t j) const {
    const portable::BlockMap& map = masks_.elements.block_map;
    const uint8_t* row = map.data + map.row(s_, batch_idx_, head_idx_, i);
    const auto column = [&](int32_t key) { return map.block_kv.quotient(s_.slot_kv + min(key, s_.len_kv - 1)); };
    const int32_t first = column(j);
    if (column(j + kKeysAtOnce - 1) == first) return row[first * map.kv_stride] != 0 ? kAllAtOnce : 0;
    return each_key(j, [&](int32_t key) { return row[column(key) * map.kv_stride] != 0; });
  }

  const portable::MasksParams& masks_;
  const portable::ArraysParams& arrays_;
  const Sequence& s_;
  int32_t batch_idx_, head_idx_;
  bool is_whole_;
  const uint8_t* dense_;  // of query 0 and key 0
  const int32_t* ids_;    // of key 0
};

// True if all that element masks read are words of a dense mask or of ids: loads that may wait side by side. The
// others' take more registers.
__device__ constexpr bool loads_words(const ScoreConfig& c) {
  return num_masks(c) == 1 && (c.element_masks.dense_mask || c.element_masks.documents);
}

// A row's bits of a tile's keys, in columns_below()'s order. Four lanes share a row: each finds four of 16 keys.
template <ScoreConfig C, int TileKv, bool IsWhole>
__device__ __forceinline__ uint32_t visible_columns(const ElementRows<C>& elements, int32_t i, int32_t first_kv,
                                                    int lane) {
  static_assert(TileKv % 16 == 0, "four lanes find 16 keys");
  const int32_t own = lane % 4 * kKeysAtOnce;
  uint32_t columns = 0;
#pragma unroll(IsWhole&& loads_words(C) ? 4 : 1)
  for (int word = 0; word * 32 < TileKv; ++word) {
    uint32_t keys = 0;
#pragma unroll
    for (int half = 0; half < 32 && word * 32 + half < TileKv; half += 16) {
      keys |= elements.template visible<IsWhole>(i, first_kv + word * 32 + half + own) << (half + own);
    }
    keys |= __shfl_xor_sync(kAllLanes, keys, 1);
    keys |= __shfl_xor_sync(kAllLanes, keys, 2);
    keys = keys >> lane % 4 * 2 & 0x03030303;  // the lane's pair of columns in each block of 8
    columns |= ((keys | keys >> 6 | keys >> 12 | keys >> 18) & 0xFF) << word * 8;
  }
  return columns;
}

// Clears from `visible` the columns that key ranges and query ranges hide, as hide_by_elements() does.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void hide_by_ranges(const portable::ElementMasks& masks, const Sequence& s,
                                               int32_t batch_idx, int32_t head_idx, int32_t first_q, int32_t first_kv,
                                               int32_t lane, uint32_t (&visible)[2]) {
  if constexpr (C.element_masks.key_ranges) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      hide_by_key_ranges<TileKv>(masks.key_ranges, s, batch_idx, head_idx, min(first_q + r * 8 + lane / 4, s.len_q - 1),
                                 first_kv, lane, visible[r]);
    }
  }
  if constexpr (C.element_masks.query_ranges) {
    hide_by_query_ranges<TileKv>(masks.query_ranges, s, batch_idx, head_idx, first_q, first_kv, lane, visible);
  }
}

// Clears from `visible` the bits of keys that the element masks hide. `visible` holds columns of a tile as
// columns_below() does, for rows lane / 4 and lane / 4 + 8 of a warp's 16. A whole warp calls it.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void hide_by_elements(const portable::MasksParams& masks,
                                                 const portable::ArraysParams& arrays, const Sequence& s,
                                                 int32_t batch_idx, int32_t head_idx, int32_t first_q, int32_t first_kv,
                                                 uint32_t (&visible)[2]) {
  auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ptx::forget(lane);  // values derived from it are computed here, where it is rare, and hold no registers
  hide_by_ranges<C, TileKv>(masks.elements, s, batch_idx, head_idx, first_q, first_kv, lane, visible);
  constexpr ScoreConfig kRest = without_ranges(C);
  if constexpr (num_masks(kRest) > 0) {
    const ElementRows<kRest> elements(masks, arrays, s, batch_idx, head_idx, first_kv, TileKv);
    const auto query = [&](int r) { return min(first_q + r * 8 + lane / 4, s.len_q - 1); };
    if (loads_words(kRest) && kRest.element_masks.dense_mask && elements.is_whole()) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        visible[r] &= visible_columns<kRest, TileKv, true>(elements, query(r), first_kv, lane);
      }
      return;
    }
#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      const uint32_t columns = elements.is_whole()
                                   ? visible_columns<kRest, TileKv, true>(elements, query(r), first_kv, lane)
                                   : visible_columns<kRest, TileKv, false>(elements, query(r), first_kv, lane);
      if (r == 0) visible[0] &= columns;
      if (r == 1) visible[1] &= columns;
    }
  }
}

// The same where accumulators leave few registers and exchanges between lanes would spill them (forward_sm80): each
// lane tests its own columns.
template <ScoreConfig C, int TileKv>
__device__ __forceinline__ void hide_own_columns(const portable::MasksParams& masks,
                                                 const portable::ArraysParams& arrays, const Sequence& s,
                                                 int32_t batch_idx, int32_t head_idx, int32_t first_q, int32_t first_kv,
                                                 uint32_t (&visible)[2]) {
  auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ptx::forget(lane);  // as above
  hide_by_ranges<C, TileKv>(masks.elements, s, batch_idx, head_idx, first_q, first_kv, lane, visible);
  constexpr ScoreConfig kRest = without_ranges(C);
  if constexpr (num_masks(kRest) > 0) {
    constexpr int kColumnsAtOnce = num_masks(kRest) > 1 ? 2 : 8;  // whose loads wait side by side: registers
    const auto sees = [&](int row, int32_t key) {
      return is_visible<kRest>(masks, arrays, s, batch_idx, head_idx, min(first_q + row, s.len_q - 1),
                               min(key, s.len_kv - 1));
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
}

// The classes of the key tiles of a query tile.
__device__ __forceinline__ uint8_t* tile_classes(const portable::TileMapParams& p, int32_t batch_idx, int32_t head_idx,
                                                 int32_t tile_q_idx) {
  return p.classes + batch_idx * p.batch_stride + head_idx * p.head_stride +
         static_cast<int64_t>(tile_q_idx) * p.kv_tiles;
}
// The words of p.seen_keys for the tile with this class.
__device__ __forceinline__ uint32_t* seen_keys(const portable::TileMapParams& p, const uint8_t* tile_class) {
  return p.seen_keys + (tile_class - p.classes) * portable::kSeenWords;
}

}  // namespace tessella::device
