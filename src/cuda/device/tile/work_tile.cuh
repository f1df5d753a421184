// Which query tile, sequence and head a thread block works on.
//
// Longest first: under a causal mask late tiles see more keys, so they start first and the short ones fill the idle
// blocks at the end. Heads run in sections, whose keys and values stay in L2 (cuda/launch/sections.hpp). Inside a
// section all heads of a tile run side by side.
#pragma once

#include "portable/tiling_params.hpp"

namespace tessella::device {

struct WorkTile {
  int32_t batch_idx;  // == batch: rows of packed tensors that belong to no sequence
  int32_t head_idx;
  int32_t tile_idx;   // of queries
  int32_t slice_idx;  // of v's columns
};

// `block` counts the grid's blocks: heads of the section fastest, then tiles from the last, then sections.
__device__ __forceinline__ WorkTile work_tile(const portable::TilingParams& p, const portable::Divisor& heads_q,
                                              int32_t block, int32_t slice) {
  const bool is_last = block >= p.first_of_last_section * p.tiles_q;
  const portable::Divisor& width = is_last ? p.heads_of_last_section : p.heads_per_section;
  const int32_t first_head =
      is_last ? p.first_of_last_section : p.tiles_per_section.quotient(block) * p.heads_per_section.value;
  const int32_t inside = block - first_head * p.tiles_q;
  const int32_t row = width.quotient(inside);
  const int32_t head = first_head + inside - row * width.value;
  const int32_t batch_idx = heads_q.quotient(head);
  return {batch_idx, head - batch_idx * heads_q.value, p.tiles_q - 1 - row, slice};
}

}  // namespace tessella::device
