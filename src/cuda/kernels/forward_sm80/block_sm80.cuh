// A block of forward_sm80: its query tile, its shared memory, and the copies that fill it.
#pragma once

#include "cuda/device/score/mask.cuh"
#include "cuda/device/score/score.cuh"
#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/device/tile/warp_tiles.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "cuda/kernels/forward_sm80/params.cuh"
#include "portable/forward_params.hpp"

namespace tessella::device {

using portable::ForwardParams;
using portable::ForwardSm80Config;
using portable::MaskLevel;

template <ForwardSm80Config C>
struct BlockSm80 : WarpTiles<C> {
  using Tiles = WarpTiles<C>;
  using Tiles::kElementBytes, Tiles::kThreads, Tiles::kRowsOfWarp, Tiles::kMBlocks, Tiles::kBlocks, Tiles::kBlocksV;
  using typename Tiles::TileQ, typename Tiles::TileK, typename Tiles::TileV;
  using Score = device::Score<C.score>;
  using Visited = VisitedTiles<C.score.mask == MaskLevel::bits>;
  static_assert(C.tile_q <= 128,
                "tiles begin at their multiples, as portable::tile_queries() has them for the tile map");
  static_assert(kRowsOfWarp <= 32, "a lane a row");
  static_assert(C.tile_kv <= 128, "a bit for each of a lane's keys of a row");

  // The work of this block.
  struct QueryTile {
    WorkTile work;
    BandedSequence<int64_t> sequence;
    const char* k;                 // the head's rows, as head_of_keys() has them
    const char* v;                 // the same, from the slice's first column on
    const uint8_t* tile_map;       // classes of the key tiles
    int32_t seen_begin, seen_end;  // keys that some query of the sequence sees, with a tile map some of the block;
                                   // beside those of keep_first
    KeyTiles tiles;                // of the block's rows
    KeyTiles warp_tiles[C.num_warps];
  };

  // The rows that keys are copied from, and which of them exist.
  struct KeySource {
    const char *k, *v;
    int32_t len_kv, seen_begin, seen_end, columns_v;
  };
  __device__ KeySource key_source() const {
    return {query_tile.k,          query_tile.v,        query_tile.sequence.len_kv,
            query_tile.seen_begin, query_tile.seen_end, columns_v()};
  }

  // Shared memory: q | k | v | begin and end of each row's keys | for a partial tile, the keys that some row of a warp
  // sees, then those that each lane's rows see | the query tile.
  static constexpr int kWords = portable::mask_words(C);
  static constexpr int kBoundsAt = portable::tile_bytes(C);
  static constexpr int kSeenAt = kBoundsAt + C.tile_q * 8;
  static constexpr int kVisibleAt = kSeenAt + portable::seen_bytes(C);
  static constexpr int kQueryTileAt = kVisibleAt + portable::visible_bytes(C);
  static_assert(kQueryTileAt + portable::kQueryTileBytes == portable::shared_bytes(C) &&
                sizeof(QueryTile) <= portable::kQueryTileBytes);

  const ForwardParams& p;
  const QueryTile& query_tile;
  uint32_t s_q;
  int thread, lane, warp_row;

  __device__ __forceinline__ BlockSm80(const ForwardParams& params, char* shared)
      : p(params),
        query_tile(*reinterpret_cast<const QueryTile*>(shared + kQueryTileAt)),
        s_q(ptx::shared_address(shared)),
        thread(static_cast<int>(threadIdx.x)),
        lane(C.score.elements.q == Element::f32 ? static_cast<int>(threadIdx.x % 32)
                                                : thread % 32),  // fp32: a register less
        warp_row(thread / 32 * kRowsOfWarp) {}

  __device__ uint32_t s_k() const { return s_q + TileQ::kBytes; }
  __device__ uint32_t s_v() const { return s_k() + TileK::kBytes; }
  __device__ uint32_t s_bounds() const { return s_q + kBoundsAt; }
  __device__ int32_t first_q() const { return query_tile.work.tile_idx * C.tile_q; }
  // Query of accumulator row r (0 or 1) of block m; its columns are 2 (lane % 4) and the next.
  __device__ int32_t query(int m, int r) const { return first_q() + warp_row + m * 16 + r * 8 + lane / 4; }
  __device__ int32_t columns_v() const {
    return min(C.head_dim_v, p.inputs.head_dim_v - query_tile.work.slice_idx * C.head_dim_v);
  }

  // Finds the block's query tile and starts to copy its queries and first keys. Returns the first key tile, or -1 if
  // the block has no query. Every thread calls it. Keep it short: a block that sees few keys spends much of its time
  // here, mostly waiting for instructions.
  __device__ __forceinline__ int32_t find_query_tile(Visited& visited) const {
    const WorkTile work = work_tile(p.tiling, p.sequences.heads_q, blockIdx.x, blockIdx.y);
    const BandedSequence<int64_t> sequence = device::sequence(p.sequences, p.masks, work.batch_idx);
    Tiles::write_rows_without_query(p, work, sequence);
    const int32_t first = work.tile_idx * C.tile_q;
    if (first >= sequence.len_q) return -1;
    const int32_t last = min(first + C.tile_q, sequence.len_q) - 1;
    const int32_t warp_first = first + warp_row, warp_last = min(warp_first + kRowsOfWarp - 1, last);
    const int32_t head_kv = p.sequences.group.quotient(work.head_idx);
    const char* k = head_of_keys(p.inputs.k, work, sequence, head_kv, 0);
    load_q(work, sequence);

    // Lanes 0 to 5 find the keys of the first and last row of the block, the warp and the sequence.
    const int32_t row = lane == 0   ? first
                        : lane == 1 ? last
                        : lane == 2 ? warp_first
                        : lane == 3 ? warp_last
                        : lane == 4 ? 0
                                    : sequence.len_q - 1;
    const KeyRange own = sequence.band.is_full() ? KeyRange{0, sequence.len_kv} : row_keys(sequence, row);
    const auto of = [&](int i) {  // (no structured binding: clang 14 captures none)
      return KeyRange{__shfl_sync(kAllLanes, own.begin, i), __shfl_sync(kAllLanes, own.end, i)};
    };
    const KeyTiles tiles = key_tiles<C.tile_kv>(of(0), of(1), p.masks.keep_first);
    KeyTiles warp_tiles = key_tiles<C.tile_kv>(of(2), of(3), p.masks.keep_first);
    if (warp_first > last) warp_tiles = {0, 0, 0, 0, 0};
    // With a tile map of the block's rows: a key outside of their range may be one that no query of the sequence sees.
    constexpr int kFirst = C.score.mask == MaskLevel::bits ? 0 : 4;
    const int32_t seen_begin = of(kFirst).begin, seen_end = of(kFirst + 1).end;
    const uint8_t* tile_map = nullptr;
    if constexpr (C.score.mask == MaskLevel::bits) {
      tile_map = tile_classes(p.tile_map, work.batch_idx, work.head_idx, work.tile_idx);
    }
    const int32_t tile = visited.next(tiles, tile_map, 0);
    if (tile < tiles.end) load_k(k, work, sequence, sequence.len_kv, tile);
    ptx::commit_copies();

    QueryTile& to = const_cast<QueryTile&>(query_tile);
    if (lane == 0) to.warp_tiles[thread / 32] = warp_tiles;
    if (thread == 0) {
      to.work = work;
      to.sequence = sequence;
      to.k = k;
      to.v = head_of_keys(p.inputs.v, work, sequence, head_kv, work.slice_idx * C.head_dim_v);
      to.tile_map = tile_map;
      to.seen_begin = seen_begin;
      to.seen_end = seen_end;
      to.tiles = tiles;
    }
    if (C.score.mask == MaskLevel::bits || !tiles.all_are_full()) write_bounds(sequence, warp_first);
    return tile;
  }
  // Writes the keys of each of the warp's rows, for tiles that need masks.
  __device__ __forceinline__ void write_bounds(const BandedSequence<int64_t>& sequence, int32_t warp_first) const {
    const int32_t row = lane % kRowsOfWarp;
    const KeyRange keys = sequence.band.is_full() ? KeyRange{0, sequence.len_kv} : row_keys(sequence, warp_first + row);
    ptx::store_words(s_bounds() + (warp_row + row) * 8, static_cast<uint32_t>(keys.begin),
                     static_cast<uint32_t>(keys.end));
  }
  __device__ KeyRange bounds(int row) const {
    const uint2 words = ptx::load_words(s_bounds() + row * 8);
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y)};
  }

  // The first element of a head, at a row and a column of the tensor.
  __device__ static const char* head(const portable::OperandParams& t, int32_t batch_idx, int32_t head_idx, int32_t row,
                                     int32_t column) {
    return static_cast<const char*>(t.data) +
           (batch_idx * t.batch_stride + head_idx * t.head_stride + row * t.row_stride + column) * kElementBytes;
  }

  // The first element of a head of k or v: at the sequence's first key, or at the pool's first row if paged.
  __device__ const char* head_of_keys(const portable::OperandParams& t, const WorkTile& work, const Sequence& sequence,
                                      int32_t head_idx, int32_t column) const {
    return C.paged ? head(t, 0, head_idx, 0, column)
                   : head(t, batch_of_keys(p.sequences, work.batch_idx), head_idx, sequence.row_kv, column);
  }
  // The rows of a sequence's keys in such a head.
  __device__ HeadRows<C.paged> key_rows(const char* head, const portable::OperandParams& t, const WorkTile& work,
                                        const Sequence& sequence) const {
    const int64_t row_bytes = t.row_stride * kElementBytes;
    if constexpr (C.paged) {
      return {p.sequences, head, row_bytes, t.batch_stride * kElementBytes, work.batch_idx, sequence.row_kv};
    } else {
      return {head, row_bytes};
    }
  }

  static constexpr portable::CopyStyle kCopies = portable::copy_style(C);

  // Copies the rows of a tile. A tile inside [begin, end) needs no test per row.
  template <class Tile, int Rows, bool Paged, class IsThere>
  __device__ __forceinline__ void load_rows(uint32_t to, const HeadRows<Paged>& rows, int32_t first, int32_t columns,
                                            int32_t begin, int32_t end, const IsThere& is_there) const {
    constexpr int kUnroll = kCopies.few_at_once ? 4 : Rows, kUnrollAtEnds = kCopies.loops_at_ends ? 1 : kUnroll;
    constexpr bool kKeepsAddressesAtEnds = kCopies.keeps_addresses && !kCopies.loops_at_ends;
    if (first >= begin && first + Rows <= end) {
      load_tile<Tile, Rows, kThreads, C.vector_loads, kUnroll, kCopies.keeps_addresses>(
          to, rows, first, columns, threadIdx.x, [](int) { return true; });
    } else {
      load_tile<Tile, Rows, kThreads, C.vector_loads, kUnrollAtEnds, kKeepsAddressesAtEnds>(to, rows, first, columns,
                                                                                            threadIdx.x, is_there);
    }
  }
  __device__ __forceinline__ void load_q(const WorkTile& work, const Sequence& sequence) const {
    const char* q = head(p.inputs.q, work.batch_idx, work.head_idx, sequence.row_q, 0);
    const int32_t len = sequence.len_q;
    load_rows<TileQ, C.tile_q>(s_q, HeadRows<false>{q, p.inputs.q.row_stride * kElementBytes}, work.tile_idx * C.tile_q,
                               p.inputs.head_dim_qk, 0, len, [&](int row) { return row < len; });
  }
  __device__ __forceinline__ void load_k(const char* k, const WorkTile& work, const Sequence& sequence, int32_t len_kv,
                                         int32_t tile) const {
    load_rows<TileK, C.tile_kv>(s_k(), key_rows(k, p.inputs.k, work, sequence), tile * C.tile_kv, p.inputs.head_dim_qk,
                                0, len_kv, [&](int key) { return key < len_kv; });
  }
  // Writes zeros for keys outside of seen_begin and seen_end, which no query sees: their memory may hold NaN, and 0 *
  // NaN is NaN.
  __device__ __forceinline__ void load_v(const KeySource& from, int32_t tile) const {
    const int32_t begin = from.seen_begin, end = from.seen_end;
    const HeadRows<C.paged> rows = key_rows(from.v, p.inputs.v, query_tile.work, query_tile.sequence);
    load_rows<TileV, C.tile_kv>(s_v(), rows, tile * C.tile_kv, from.columns_v, begin, end, [&](int key) -> bool {
      if constexpr (kCopies.loops_at_ends) return (key < end) & ((key >= begin) | (key < p.masks.keep_first));
      return key < end && (key >= begin || key < p.masks.keep_first);  // branches take no registers
    });
  }

  // The tile after `tile`. Without a tile map it is the next one, except at the gap after the tiles of keep_first.
  __device__ int32_t after(Visited& visited, int32_t tile) const {
    if (C.score.mask == MaskLevel::band && (p.masks.keep_first == 0 || tile + 1 != query_tile.tiles.keep_first_end))
      return tile + 1;
    return visited.next(query_tile.tiles, query_tile.tile_map, tile + 1);
  }
  __device__ const KeyTiles& warp_tiles() const { return query_tile.warp_tiles[thread / 32]; }
};

}  // namespace tessella::device
