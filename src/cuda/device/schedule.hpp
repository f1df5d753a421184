// Which tile of queries, sequence and head a thread block works on.
//
// Longest first: where a band grows with the query, late tiles see more keys, so they start first and the short ones
// fill the gaps at the end. Heads run in sections, whose keys and values stay in L2 (cuda/sections.hpp); inside a
// section all heads of a tile run side by side.
#pragma once

#include "portable/forward_params.hpp"

namespace tessella::device {

struct WorkTile {
  int32_t batch_idx;  // == batch: rows of packed tensors that belong to no sequence
  int32_t head_idx;
  int32_t tile_idx;   // of queries
  int32_t slice_idx;  // of v's columns
};

// `block` counts the grid's blocks: those of a cluster, which take tiles side by side, fastest, then heads of the
// section, tiles from the last, sections.
template <uint32_t Cluster = 1>
__device__ __forceinline__ WorkTile work_tile(const portable::ForwardParams& p, uint32_t block, uint32_t slice) {
  const uint32_t in_cluster = block % Cluster;
  block /= Cluster;
  const uint32_t tiles = static_cast<uint32_t>(p.tiles_q) / Cluster;
  const auto heads = static_cast<uint32_t>(p.heads_q);
  const uint32_t all_heads = (static_cast<uint32_t>(p.batch) + (p.cu_seqlens_q.data != nullptr ? 1 : 0)) * heads;
  const auto per_section = static_cast<uint32_t>(p.heads_per_section);
  const auto first_of_last = static_cast<uint32_t>(p.first_of_last_section);
  const bool is_last = block >= first_of_last * tiles;
  const uint32_t first_head = is_last ? first_of_last : block / (per_section * tiles) * per_section;
  const uint32_t width = is_last ? all_heads - first_of_last : per_section;
  const uint32_t inside = block - first_head * tiles;
  const uint32_t head = first_head + inside % width;
  const uint32_t tile = (tiles - 1 - inside / width) * Cluster + in_cluster;
  return {static_cast<int32_t>(head / heads), static_cast<int32_t>(head % heads), static_cast<int32_t>(tile),
          static_cast<int32_t>(slice)};
}

}  // namespace tessella::device
