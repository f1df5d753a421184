// Backward: which query tiles a block of keys visits, in which order, and which key tile adds to their dQ next.
#pragma once

#include "cuda/device/ptx/global.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/score/mask.cuh"
#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "portable/backward_params.hpp"

namespace tessella::device {

using portable::BackwardParams;
using portable::QueryTile;

// The index of a sequence's first tile among the tiles of a head. A sequence has at most one short tile, so the tiles
// of packed sequences never overlap if their offsets ascend.
template <int TileQ>
__device__ __forceinline__ int32_t first_tile(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx) {
  const int64_t row = p.sequences.cu_seqlens_q.data != nullptr ? sequence.row_q
                                                               : static_cast<int64_t>(batch_idx) * p.sequences.seqlen_q;
  return static_cast<int32_t>(row / TileQ) + batch_idx;
}

template <int TileKv>
__device__ __forceinline__ KeyTiles key_tiles(const QueryTile& tile, int32_t keep_first) {
  return key_tiles<TileKv>(KeyRange{tile.smallest_begin, tile.smallest_end},
                           KeyRange{tile.largest_begin, tile.largest_end}, keep_first);
}

// The query tiles of one sequence and one of its heads.
template <int TileQ, int TileKv, bool HasMap>
struct HeadTiles {
  const BackwardParams& p;
  int32_t batch_idx, head_idx;
  int64_t first;  // tile

  __device__ HeadTiles(const BackwardParams& params, const Sequence& sequence, int32_t batch, int32_t head)
      : HeadTiles(params, batch, head, first_tile<TileQ>(params, sequence, batch)) {}
  // first_of_sequence: from first_tile().
  __device__ HeadTiles(const BackwardParams& params, int32_t batch, int32_t head, int32_t first_of_sequence)
      : p(params),
        batch_idx(batch),
        head_idx(head),
        first(static_cast<int64_t>(head) * params.tiles_of_head + first_of_sequence) {}

  __device__ KeyTiles keys(int32_t tile) const { return key_tiles<TileKv>(p.tiles[first + tile], p.masks.keep_first); }
  __device__ TileClass kind(int32_t tile, int32_t key_tile) const {
    if (!HasMap) return TileClass::full;
    return static_cast<TileClass>(tile_classes(p.tile_map, batch_idx, head_idx, tile)[key_tile]);
  }
  // A bit for each key of a key tile that is not hidden: whether some query of the tile sees it. With a map.
  __device__ uint4 seen(int32_t tile, int32_t key_tile) const {
    return *reinterpret_cast<const uint4*>(
        seen_keys(p.tile_map, tile_classes(p.tile_map, batch_idx, head_idx, tile) + key_tile));
  }
  // The first key tile from `from` on that some query of the tile sees, or the end.
  __device__ int32_t next_key_tile(int32_t tile, const KeyTiles& seen, int32_t from) const {
    if (!HasMap && from >= seen.keep_first_end && from < seen.begin) return seen.begin;
    while (from < seen.end && (!seen.sees(from) || kind(tile, from) == TileClass::hidden)) ++from;
    return from;
  }
};

// One visit of a block of keys to a query tile.
struct QueryVisit {
  int32_t head_idx;  // -1: there is none left
  int32_t tile;
  int32_t next_key_tile;  // the first one after the block's that the tile's queries see
  bool is_full;           // each of its queries sees each of the keys
  bool has_idle;          // some of its rows are idle
  bool has_elements;      // element masks hide some
  __device__ bool is_there() const { return head_idx >= 0; }
};

// In which order a block visits the query tiles of a group's heads, from the last tile to the first: head by head, or
// at each tile all heads. Under a causal mask later keys meet fewer tiles: head by head their blocks wait at each head
// for those of earlier keys.
enum class VisitOrder { by_head, by_tile };

// The query tiles that see some key of a tile. Blocks of a head start in the order of their keys, so from the last tile
// to the first they reach each one after the other and seldom wait. One warp finds the visits, 32 tiles at a time, for
// the whole block, and leaves them in shared memory to save registers.
template <int TileQ, int TileKv, bool HasMap, VisitOrder Order = VisitOrder::by_head>
class VisitedQueryTiles {
 public:
  using Head = HeadTiles<TileQ, TileKv, HasMap>;
  static constexpr int kSlots = 4;  // of visits: the last one, this one, and the next two
  static constexpr int kWords = 8 + 32 + kSlots * 4;

  __device__ VisitedQueryTiles(const BackwardParams& p, const Sequence& sequence, int32_t batch_idx, int32_t key_tile,
                               int32_t first_head, uint32_t s_words)
      : p_(p),
        first_tile_(first_tile<TileQ>(p, sequence, batch_idx)),
        tiles_((sequence.len_q + TileQ - 1) / TileQ),
        batch_idx_(batch_idx),
        key_tile_(key_tile),
        first_head_(first_head),
        s_words_(s_words),
        lane_(static_cast<int32_t>(threadIdx.x % 32)) {}

  __device__ Head of_head(int32_t head_idx) const { return {p_, batch_idx_, head_idx, first_tile_}; }

  // The whole warp calls it, as next().
  __device__ void begin() const {
    if (lane_ < kSlots) store_visit(lane_, -1, 0, 0);
    if (lane_ == 0) {
      set(kHead, first_head_);
      set(kBase, top());
    }
    __syncwarp();
    if (top() >= 0) find_tiles(first_head_, top());
  }

  // Writes the next visit into a slot.
  __device__ void next(int slot) const {
    int32_t head = kByTile ? first_head_ : get(kHead), base = get(kBase);
    auto visible = static_cast<uint32_t>(get(kVisible));
    __syncwarp();
    while (base >= 0 && visible == 0) {
      base -= 32;
      if (base < 0) {
        if (kByTile || ++head == first_head_ + p_.sequences.group.value) break;
        base = top();
      }
      visible = find_tiles(head, base);
    }
    if (lane_ == 0) {
      if (base < 0 || visible == 0) {
        store_visit(slot, -1, 0, 0);
      } else {
        const int bit = 31 - __clz(static_cast<int>(visible));
        visible &= ~(1u << bit);
        const auto has = [&](int word) { return static_cast<uint32_t>(get(word)) >> bit & 1; };
        const uint32_t flags = has(kFull) | has(kIdle) << 1 | has(kPartial) << 2;
        const TileOfHead at = tile_of_head(head, base + bit);
        store_visit(slot, at.head_idx, at.tile, static_cast<uint32_t>(get(kNextKeyTiles + bit)) << 3 | flags);
      }
      if (!kByTile) set(kHead, head);
      set(kBase, base);
      set(kVisible, static_cast<int32_t>(visible));
    }
    __syncwarp();
  }

  // Whole warps call it, after a barrier. The shuffle tells the compiler that all lanes hold the same value, so that it
  // computes addresses once a warp.
  __device__ QueryVisit visit(int slot) const {
    const uint4 words = ptx::load_chunk(s_words_ + (kVisits + slot * 4) * 4);
    const auto first = [](uint32_t word) { return static_cast<int32_t>(__shfl_sync(kAllLanes, word, 0)); };
    const int32_t rest = first(words.z);
    return {first(words.x), first(words.y), rest >> 3, (rest & 1) != 0, (rest & 2) != 0, (rest & 4) != 0};
  }

 private:
  enum Word { kHead, kBase, kVisible, kFull, kIdle, kPartial, kNextKeyTiles = 8, kVisits = 40 };
  __device__ int32_t get(int word) const { return static_cast<int32_t>(ptx::load_word(s_words_ + word * 4)); }
  __device__ void set(int word, int32_t value) const {
    ptx::store_word(s_words_ + word * 4, static_cast<uint32_t>(value));
  }
  __device__ void store_visit(int slot, int32_t head, int32_t tile, uint32_t rest) const {
    ptx::store_chunk(s_words_ + (kVisits + slot * 4) * 4,
                     {static_cast<uint32_t>(head), static_cast<uint32_t>(tile), rest, 0});
  }

  static constexpr bool kByTile = Order == VisitOrder::by_tile;
  // The idx-th tile of a head, or by tile the idx-th of all heads.
  struct TileOfHead {
    int32_t head_idx, tile;
  };
  __device__ TileOfHead tile_of_head(int32_t head_idx, int32_t idx) const {
    if (!kByTile) return {head_idx, idx};
    const int32_t tile = p_.sequences.group.quotient(idx);
    return {first_head_ + idx - tile * p_.sequences.group.value, tile};
  }
  __device__ int32_t top() const {
    const int32_t count = kByTile ? tiles_ * p_.sequences.group.value : tiles_;
    return (count + 31) / 32 * 32 - 32;
  }

  // Tests tiles from `base` on, one a lane, and returns a bit for each visited one.
  __device__ uint32_t find_tiles(int32_t head_idx, int32_t base) const {
    const TileOfHead at = tile_of_head(head_idx, base + lane_);
    const Head head = of_head(at.head_idx);
    const int32_t mine = at.tile;
    bool is_full = false, has_idle = false;
    TileClass kind = TileClass::hidden;
    if (mine < tiles_) {
      const QueryTile tile = p_.tiles[head.first + mine];
      const KeyTiles keys = key_tiles<TileKv>(tile, p_.masks.keep_first);
      if (keys.sees(key_tile_)) kind = head.kind(mine, key_tile_);
      is_full = keys.is_full(key_tile_) && kind == TileClass::full;
      has_idle = tile.smallest_end <= 0;
      if (kind != TileClass::hidden) set(kNextKeyTiles + lane_, head.next_key_tile(mine, keys, key_tile_ + 1));
    }
    const uint32_t visible = __ballot_sync(kAllLanes, kind != TileClass::hidden);
    const uint32_t full = __ballot_sync(kAllLanes, is_full), idle = __ballot_sync(kAllLanes, has_idle);
    const uint32_t partial = __ballot_sync(kAllLanes, kind == TileClass::partial);
    if (lane_ == 0) {
      set(kVisible, static_cast<int32_t>(visible));
      set(kFull, static_cast<int32_t>(full));
      set(kIdle, static_cast<int32_t>(idle));
      set(kPartial, static_cast<int32_t>(partial));
    }
    __syncwarp();
    return visible;
  }

  const BackwardParams& p_;
  int32_t first_tile_, tiles_;  // of the sequence
  int32_t batch_idx_, key_tile_, first_head_;
  uint32_t s_words_;
  int32_t lane_;
};

}  // namespace tessella::device
