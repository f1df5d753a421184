// Which tiles of queries a block of keys of backward meets, in which order, and whose turn it is at their dQ.
#pragma once

#include "cuda/device/ptx/global.hpp"
#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/mask.hpp"
#include "cuda/device/tile/keys.hpp"
#include "portable/backward_params.hpp"

namespace tessella::device {

using portable::BackwardParams;
using portable::QueryTile;

// The first tile of a sequence among those of its head: tiles of packed sequences follow one another, and a sequence
// has one at most that is not full.
template <int TileQ>
__device__ __forceinline__ int32_t first_tile(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx) {
  const int64_t row =
      p.forward.cu_seqlens_q.data != nullptr ? sequence.row_q : static_cast<int64_t>(batch_idx) * p.forward.seqlen_q;
  return static_cast<int32_t>(row / TileQ) + batch_idx;
}

template <int TileKv>
__device__ __forceinline__ KeyTiles key_tiles(const QueryTile& tile, int32_t keep_first) {
  return key_tiles<TileKv>(KeyRange{tile.smallest_begin, tile.smallest_end},
                           KeyRange{tile.largest_begin, tile.largest_end}, keep_first);
}

// Of a sequence and one of its heads.
template <int TileQ, int TileKv, bool HasMap>
struct HeadTiles {
  const BackwardParams& p;
  int32_t batch_idx, head_idx;
  int64_t first;  // tile

  __device__ HeadTiles(const BackwardParams& params, const Sequence& sequence, int32_t batch, int32_t head)
      : p(params),
        batch_idx(batch),
        head_idx(head),
        first(static_cast<int64_t>(head) * params.tiles_of_head + first_tile<TileQ>(params, sequence, batch)) {}

  __device__ KeyTiles keys(int32_t tile) const {
    return key_tiles<TileKv>(p.tiles[first + tile], p.forward.keep_first);
  }
  __device__ TileClass kind(int32_t tile, int32_t key_tile) const {
    if (!HasMap) return TileClass::full;
    return static_cast<TileClass>(tile_classes(p.forward, batch_idx, head_idx, tile)[key_tile]);
  }
  // The first key tile from `from` on that some query of the tile sees, or the end.
  __device__ int32_t next_key_tile(int32_t tile, const KeyTiles& seen, int32_t from) const {
    if (!HasMap && from >= seen.kept && from < seen.begin) return seen.begin;
    while (from < seen.end && (!seen.sees(from) || kind(tile, from) == TileClass::hidden)) ++from;
    return from;
  }
};

// Tiles of queries that see some key of a tile, from the last to the first, head by head of a group. So the blocks of a
// head's key tiles, which begin in the order of their keys, come to a tile in that order, one after the other, and
// seldom wait. Every thread of a warp holds 32 tiles as bits.
template <int TileQ, int TileKv, bool HasMap>
class VisitedQueryTiles {
 public:
  using Head = HeadTiles<TileQ, TileKv, HasMap>;

  struct Visit {
    int32_t head_idx = -1;  // -1: there is none left
    int32_t tile = 0;
    int32_t next_key_tile = 0;  // the first one behind this block's that the tile's queries see; in the first warp
    bool is_full = false;       // each of its queries sees each of the keys
    bool has_idle = false;      // some of its rows take no part
    bool has_elements = false;  // element masks hide some
    __device__ bool is_there() const { return head_idx >= 0; }
  };

  __device__ VisitedQueryTiles(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t key_tile,
                               int32_t first_head, int32_t end_head)
      : p_(p),
        sequence_(sequence),
        batch_idx_(batch_idx),
        key_tile_(key_tile),
        head_(first_head),
        end_head_(end_head),
        base_(top()) {
    if (base_ < 0) head_ = end_head_;
    look();
  }

  __device__ Visit next() {
    while (head_ < end_head_) {
      if (visible_ != 0) {
        const int bit = 31 - __clz(static_cast<int>(visible_));
        visible_ &= ~(1u << bit);
        const int32_t next_key_tile = __shfl_sync(kAllLanes, next_key_tile_, bit);
        const auto has = [bit](uint32_t bits) { return (bits >> bit & 1) != 0; };
        return {head_, base_ + bit, next_key_tile, has(full_), has(idle_), has(partial_)};
      }
      base_ -= 32;
      if (base_ < 0) {
        base_ = top();
        ++head_;
      }
      look();
    }
    return {};
  }

 private:
  __device__ int32_t tiles() const { return (sequence_.len_q + TileQ - 1) / TileQ; }
  __device__ int32_t top() const { return (tiles() + 31) / 32 * 32 - 32; }
  // By a whole warp.
  __device__ void look() {
    if (head_ >= end_head_) return;
    const Head head(p_, sequence_, batch_idx_, head_);
    const int32_t mine = base_ + static_cast<int32_t>(threadIdx.x % 32);
    bool sees = false, is_full = false, has_idle = false;
    TileClass kind = TileClass::hidden;
    if (mine < tiles()) {
      const QueryTile tile = p_.tiles[head.first + mine];
      const KeyTiles keys = key_tiles<TileKv>(tile, p_.forward.keep_first);
      sees = keys.sees(key_tile_);
      is_full = keys.is_full(key_tile_);
      has_idle = tile.smallest_end <= 0;
      if (sees) kind = head.kind(mine, key_tile_);
      if (threadIdx.x < 32 && kind != TileClass::hidden) next_key_tile_ = head.next_key_tile(mine, keys, key_tile_ + 1);
    }
    visible_ = __ballot_sync(kAllLanes, sees && kind != TileClass::hidden);
    full_ = __ballot_sync(kAllLanes, is_full && kind == TileClass::full);
    idle_ = __ballot_sync(kAllLanes, has_idle);
    partial_ = __ballot_sync(kAllLanes, kind == TileClass::partial);
  }

  const BackwardParams& p_;
  const Sequence& sequence_;
  int32_t batch_idx_, key_tile_;
  int32_t head_, end_head_, base_;
  int32_t next_key_tile_ = 0;  // of the lane's tile
  uint32_t visible_ = 0, full_ = 0, idle_ = 0, partial_ = 0;
};

}  // namespace tessella::device
