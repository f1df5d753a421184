// Masks that are no interval, element by element, and the tile map that spares them in most tiles.
#pragma once

#include "cuda/device/arrays.hpp"
#include "cuda/device/sequence.hpp"
#include "portable/forward_config.hpp"
#include "user.hpp"

namespace tessella::device {

using portable::ForwardConfig;

enum class TileClass : uint8_t { hidden = 0, partial = 1, full = 2 };

// Inside the lengths: does query i see key j, as far as documents, dense mask, block map and the caller's text go?
template <ForwardConfig C>
__device__ __forceinline__ bool is_visible(const portable::ForwardParams& p, const Sequence& s, int32_t batch_idx,
                                           int32_t head_idx, int32_t i, int32_t j) {
  const int64_t slot = s.slot_kv + j;
  bool visible = true;
  if (p.document_q.data != nullptr) {
    const auto id = [&](const portable::TableParams& ids, int64_t row) {
      return static_cast<const int32_t*>(ids.data)[batch_idx * ids.batch_stride + row * ids.stride];
    };
    visible = id(p.document_q, s.row_q + i) == id(p.document_kv, s.row_kv + j);
  }
  const auto flag = [&](const portable::ScoreOperandParams& mask, int64_t q, int64_t kv) {
    return static_cast<const uint8_t*>(mask.data)[batch_idx * mask.batch_stride + head_idx * mask.head_stride +
                                                  q * mask.q_stride + kv * mask.kv_stride] != 0;
  };
  if (p.dense_mask.data != nullptr) visible = visible && flag(p.dense_mask, i, slot);
  if (p.block_map.data != nullptr) visible = visible && flag(p.block_map, i / p.block_map_q, slot / p.block_map_kv);
  if constexpr (C.keep) visible = visible && user::keep(batch_idx, head_idx, i, j, Arrays(p));
  return visible;
}

// One block a tile of C.tile_q x C.tile_kv: writes its class into the tile map. Blocks count key tiles fastest, then
// query tiles, heads and batches that have a map of their own.
template <ForwardConfig C>
__global__ void __launch_bounds__(128) classify_tiles(const __grid_constant__ portable::ForwardParams p) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t tile_kv_idx = block % p.kv_tiles;
  const int32_t tile_q_idx = block / p.kv_tiles % p.tiles_q;
  const int32_t map_idx = block / p.kv_tiles / p.tiles_q;
  const int32_t heads = p.tile_map_head_stride == 0 ? 1 : p.heads_q;
  const int32_t batch_idx = map_idx / heads;
  const int32_t head_idx = map_idx % heads;
  const Sequence s = sequence(p, batch_idx);
  const int32_t first_q = tile_q_idx * C.tile_q;
  const int32_t first_kv = tile_kv_idx * C.tile_kv;
  const int32_t rows = min(C.tile_q, s.len_q - first_q);
  const int32_t keys = min(C.tile_kv, s.len_kv - first_kv);
  bool sees = false, hides = false;
  for (int32_t at = static_cast<int32_t>(threadIdx.x); at < C.tile_q * C.tile_kv; at += 128) {
    const int32_t i = at / C.tile_kv, j = at % C.tile_kv;
    if (i >= rows || j >= keys) continue;
    const bool visible = is_visible<C>(p, s, batch_idx, head_idx, first_q + i, first_kv + j);
    sees |= visible;
    hides |= !visible;
  }
  sees = __syncthreads_or(sees);
  hides = __syncthreads_or(hides);
  if (threadIdx.x != 0) return;
  const TileClass tile = !sees ? TileClass::hidden : hides ? TileClass::partial : TileClass::full;
  p.tile_map[batch_idx * p.tile_map_batch_stride + head_idx * p.tile_map_head_stride +
             static_cast<int64_t>(tile_q_idx) * p.kv_tiles + tile_kv_idx] = static_cast<uint8_t>(tile);
}

}  // namespace tessella::device
