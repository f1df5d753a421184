// Which key tile a block of backward takes, in the order in which blocks start.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/backward_params.hpp"

namespace tessella::device {

// A tile of a head, of all sequences' heads.
struct HeadTile {
  int32_t head, tile;
};
// The idx-th where heads are grouped in sections of `width`, whose tiles run side by side. In a section tiles ascend,
// and at each tile heads.
__device__ __forceinline__ HeadTile head_tile(int32_t idx, int32_t heads, int32_t width, int32_t tiles) {
  const int32_t section = idx / (width * tiles), first_head = section * width;
  const int32_t inside = idx - first_head * tiles, wide = min(width, heads - first_head);
  const int32_t tile = inside / wide;
  return {first_head + inside - tile * wide, tile};
}

struct KeyTicket {
  int32_t batch_idx, head_kv, key_tile;
};

// Blocks that start earlier get earlier tickets, so a block only waits for blocks that have started. In a section of KV
// heads the first key tiles go first, because under a causal mask they meet the most queries. All threads call it;
// s_word: a word of shared memory.
__device__ __forceinline__ KeyTicket take_key_ticket(const portable::BackwardParams& p, uint32_t s_word) {
  if (threadIdx.x == 0) ptx::store_word(s_word, atomicAdd(p.ticket, 1u));
  __syncthreads();
  const auto ticket = static_cast<int32_t>(ptx::load_word(s_word));
  __syncthreads();
  const HeadTile of = head_tile(ticket, p.sequences.batch * p.heads_kv, p.section_heads, p.kv_tiles);
  const int32_t batch_idx = of.head / p.heads_kv;
  return {batch_idx, of.head - batch_idx * p.heads_kv, of.tile};
}

// True if each query tile belongs to one sequence, as in packed tensors whose sequences do not overlap. If sequences
// overlap, no result is right, and a block must not wait for a turn that never comes. Whole warps call it.
__device__ __forceinline__ bool sequences_are_apart(const portable::BackwardParams& p) {
  const portable::TableParams& table = p.sequences.cu_seqlens_q;
  bool descends = false;
  for (auto i = static_cast<int32_t>(threadIdx.x % 32); table.data != nullptr && i < p.sequences.batch; i += 32) {
    descends |= entry(table, i + 1) < entry(table, i);
  }
  return !__any_sync(kAllLanes, descends);
}

}  // namespace tessella::device
