// Masks that are no interval, element by element, and the tile map that spares them in most tiles.
#pragma once

#include "cuda/device/arrays.hpp"
#include "cuda/device/keys.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "portable/forward_config.hpp"
#include "user.hpp"  // user::keep: the caller's text

namespace tessella::device {

using portable::ForwardConfig;

// Inside the lengths: does query i see key j, as far as documents, dense mask, block map and the caller's text go?
template <ForwardConfig C>
__device__ __forceinline__ bool is_visible(const portable::ForwardParams& p, const BandedSequence<int64_t>& s,
                                           int32_t batch_idx, int32_t head_idx, int32_t i, int32_t j) {
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
    const auto entry_of = [](int64_t row, int32_t rows) {
      return static_cast<uint32_t>(row) / static_cast<uint32_t>(rows);
    };
    visible = visible && flag(p.block_map, entry_of(i, p.block_map_q), entry_of(slot, p.block_map_kv));
  }
  if constexpr (C.keep) visible = visible && user::keep(batch_idx, head_idx, i, j, Arrays(p));
  return visible;
}

// A warp a tile of C.tile_q x C.tile_kv: writes its class into the tile map. Warps count key tiles fastest, then query
// tiles, heads and batches that have a map of their own.
template <ForwardConfig C>
__global__ void __launch_bounds__(portable::kClassifyWarps * 32)
    classify_tiles(const __grid_constant__ portable::ForwardParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t tile_idx = blockIdx.x * portable::kClassifyWarps + threadIdx.x / 32;
  const auto tile_kv_idx = static_cast<int32_t>(tile_idx % p.kv_tiles);
  const auto tile_q_idx = static_cast<int32_t>(tile_idx / p.kv_tiles % p.tiles_q);
  const auto map_idx = static_cast<int32_t>(tile_idx / p.kv_tiles / p.tiles_q);
  const int32_t heads = p.tile_map_head_stride == 0 ? 1 : p.heads_q;
  const int32_t batch_idx = map_idx / heads, head_idx = map_idx % heads;
  if (batch_idx >= (p.tile_map_batch_stride == 0 ? 1 : p.batch)) return;  // the last block's warps
  const BandedSequence<int64_t> s = sequence(p, batch_idx);
  const int32_t first_q = tile_q_idx * C.tile_q, first_kv = tile_kv_idx * C.tile_kv;
  const int32_t rows = min(C.tile_q, s.len_q - first_q), keys = min(C.tile_kv, s.len_kv - first_kv);
  int32_t pairs = 0, visible = 0;
  if (keys > 0) {
#pragma unroll
    for (int first = 0; first < C.tile_kv; first += 32) {
      const int32_t j = first_kv + min(first + lane, keys - 1);  // a key twice does no harm
#pragma unroll 8
      for (int i = 0; i < rows; ++i) visible += is_visible<C>(p, s, batch_idx, head_idx, first_q + i, j) ? 1 : 0;
      pairs += max(rows, 0);
    }
  }
  const bool sees = __any_sync(kAllLanes, visible > 0);
  const bool hides = __any_sync(kAllLanes, visible < pairs);
  if (lane != 0) return;
  const TileClass tile = !sees ? TileClass::hidden : hides ? TileClass::partial : TileClass::full;
  p.tile_map[batch_idx * p.tile_map_batch_stride + head_idx * p.tile_map_head_stride +
             static_cast<int64_t>(tile_q_idx) * p.kv_tiles + tile_kv_idx] = static_cast<uint8_t>(tile);
}

}  // namespace tessella::device
