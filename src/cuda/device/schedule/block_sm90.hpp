// A block of forward_sm90: its shared memory, what its warps tell each other, and the warps that load.
#pragma once

#include "cuda/device/ptx/shared.hpp"
#include "cuda/device/ptx/tensor_copy.hpp"
#include "cuda/device/schedule/schedule.hpp"
#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/score/mask.hpp"
#include "cuda/device/tile/keys.hpp"
#include "cuda/device/tile/ring.hpp"
#include "cuda/device/tile/rows.hpp"
#include "cuda/device/tile/zero_rows.hpp"
#include "portable/forward_sm90.hpp"
#include "portable/query_tiles.hpp"

namespace tessella::device {

using portable::ForwardParams;
using portable::ForwardSm90Config;
using portable::ForwardSm90Params;
using portable::MaskLevel;
using QueryRange = portable::QueryRange<int32_t>;

template <ForwardSm90Config C>
struct BlockSm90 {
  static constexpr int kRows = portable::kWarpgroupRows;  // of a warpgroup
  static constexpr int kWarpgroups = C.tile_q / kRows;
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  // A launch gives all threads the same number, a multiple of 8; what one part gives up the other takes.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kLoadRegisters = kWarpgroups == 3 ? 32 : 40;
  static constexpr int kMultiplyRegisters = kWarpgroups == 3 ? 160 : 232;
  static_assert(kLoadRegisters + kWarpgroups * kMultiplyRegisters <= (1 + kWarpgroups) * kLaunchRegisters);
  // Tiles that a warpgroup sees nothing of are left out by it, where they are many: where the item has far more rows
  // than the warpgroup, or a tile no more keys (docs/lab/forward_sm90.md). Its rows are others in each item then, lest
  // one warpgroup has always the most to do.
  static constexpr bool kLeavesOut = kWarpgroups == 3 || C.tile_kv <= kRows;
  static constexpr portable::ForwardSm90Layout kLayout = portable::forward_sm90_layout(C);
  static constexpr int kRowBytes = 128;  // of a panel of 64 columns
  static constexpr bool kSumsByProduct = portable::sums_by_product(C);
  static constexpr int kStageOfV = kLayout.v_bytes + kLayout.ones_bytes;
  static constexpr int kQBytes = kLayout.q_bytes / kWarpgroups;  // of a warpgroup's queries
  static constexpr int kLoadedRows = C.tile_kv / C.cluster;      // of a tile of keys: what this block loads, for all
  static_assert(kLoadedRows % portable::kSwizzleRows == 0);
  static_assert(C.cluster == 1 || !(C.paged || C.score.mask == MaskLevel::bits || kLeavesOut),
                "its blocks walk the same tiles");

  // Where scores change with the distance to a key, an item's key tiles begin with the one at its last query's place,
  // go down from there to the first and then up from the one behind. So the largest scores mostly come first, and
  // maxima hardly grow (softmax_rows.hpp). Tiles are counted in this order; Item::first_key() says which keys they are.
  static constexpr bool kStartsNear =
      (C.score.alibi || C.score.score_mod) && C.score.mask == MaskLevel::band && !C.score.batch_invariant;
  // Else, where all warpgroups walk all tiles, those that every row sees whole come first, then those behind them, then
  // those before: of a left window's first keys later rows see few, whose maxima would soon be overtaken. Counted in
  // that order too; what a warpgroup alone sees whole of the last ones it masks for nothing.
  static constexpr bool kWholeFirst =
      !kStartsNear && !kLeavesOut && C.score.mask == MaskLevel::band && C.cluster == 1 && !C.score.batch_invariant;

  // What of an item's key tiles a warpgroup computes: [first, end), of which [full_begin, full_end) are seen whole by
  // its rows. Of the `before` and `behind` tiles on either side its rows see nothing.
  struct Share {
    int32_t first, end, full_begin, full_end, before, behind;

    __device__ bool is_empty() const { return kLeavesOut && first >= end; }
    __device__ bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
  };

  // A tile of queries: what every warp needs to know of it.
  struct Item {
    int32_t batch_kv;  // of the tensors of its keys; -1: there is none left
    WorkTile work;
    int32_t head_kv;
    BandedSequence<int32_t> sequence;
    QueryRange queries;            // of the tile
    int32_t seen_begin, seen_end;  // keys that some query of the sequence sees, beside those of keep_first
    union {
      int32_t nearest;   // with kStartsNear index of the keys' tile that comes first; -1: in their own order
      int32_t num_last;  // with kWholeFirst tiles that come last, though their keys are the first
    };
    KeyTiles tiles;  // of all rows
    union {
      const uint8_t* map;  // their classes, with a tile map
      int32_t least_keys;  // without one: each row sees as many or more
    };
    int32_t first_tile;  // that it visits; no less than tiles.end if there is none
    Share shares[kWarpgroups];

    __device__ bool exists() const { return batch_kv >= 0; }
    // Of a tile.
    __device__ int32_t first_key(int32_t tile) const {
      if (kStartsNear && tile <= nearest) tile = nearest - tile;
      if (kWholeFirst) tile += tile < tiles.end - num_last ? num_last : tiles.begin - tiles.end + num_last;
      return tile * C.tile_kv;
    }
    __device__ bool has_keys() const { return first_tile < tiles.end; }
  };
  static_assert(sizeof(Item) <= kLayout.item_bytes);

  // With a tile map, what warpgroups need to know of a tile: its index and, below it, a bit that it is partial and two
  // for each part of the rows: they see the tile whole, and it is the last of their share.
  struct Note {
    static constexpr int kFlags = 1 + 2 * kWarpgroups;
    uint32_t word;

    __device__ static Note of(const Item& item, int32_t tile, bool is_partial) {
      uint32_t flags = is_partial ? 1 : 0;
#pragma unroll
      for (int i = 0; i < kWarpgroups; ++i) {
        const Share& share = item.shares[i];
        if (!is_partial && share.is_full(tile)) flags |= 2u << i * 2;
        if (tile + 1 >= share.end) flags |= 4u << i * 2;
      }
      return {static_cast<uint32_t>(tile) << kFlags | flags};
    }
    __device__ int32_t tile() const { return static_cast<int32_t>(word >> kFlags); }
    __device__ bool is_partial() const { return word % 2 != 0; }
    __device__ bool is_full(int part) const { return (word >> part * 2 & 2) != 0; }
    __device__ bool is_last(int part) const { return (word >> part * 2 & 4) != 0; }
  };
  static_assert(portable::kHopperLongest / C.tile_kv < 1 << (32 - Note::kFlags));

  // Three rings in which all stand at the same place: an item is there, and its slot is free again; the bounds of its
  // rows are there too; its k is under way.
  using Items = Ring<kLayout.item_slots>;
  static constexpr int kBounds = 1, kLoaded = 2, kItemRings = 3;
  using QRing = Ring<kLayout.q_slots>;  // of a warpgroup
  using KRing = Ring<kLayout.k_stages>;
  using VRing = Ring<kLayout.v_stages>;
  static_assert(kLayout.barriers_at + kItemRings * Items::kBytes + kWarpgroups * QRing::kBytes + KRing::kBytes +
                    VRing::kBytes ==
                kLayout.bytes);
  static constexpr bool kHasMap = C.score.mask == MaskLevel::bits;
  static constexpr bool kLoadsByWarp = kHasMap || C.paged;  // else by a thread
  using Visited = VisitedTiles<kHasMap>;

  const ForwardSm90Params& p;
  char* shared;
  uint32_t s_q;

  __device__ __forceinline__ BlockSm90(const ForwardSm90Params& params, char* shared_memory)
      : p(params), shared(shared_memory), s_q(ptx::shared_address(shared_memory)) {}

  __device__ uint32_t item_barriers() const { return s_q + kLayout.barriers_at; }
  __device__ uint32_t q_barriers() const { return item_barriers() + kItemRings * Items::kBytes; }
  __device__ uint32_t k_barriers() const { return q_barriers() + kWarpgroups * QRing::kBytes; }
  __device__ uint32_t v_barriers() const { return k_barriers() + KRing::kBytes; }
  // Buffers of the slots where rings stand.
  __device__ uint32_t s_q_of(const QRing& q, int warpgroup) const {
    return s_q + q.offset(kLayout.q_bytes) + warpgroup * kQBytes;
  }
  __device__ uint32_t s_k(const KRing& k) const { return s_q + kLayout.k_at + k.offset(kLayout.k_bytes); }
  __device__ uint32_t s_v(const VRing& v) const { return s_q + kLayout.v_at + v.offset(kStageOfV); }
  __device__ Item& item(const Items& items) const { return item_at(items.offset(kLayout.item_bytes)); }
  __device__ uint32_t s_bounds(const Items& items, int row) const {
    return s_q + kLayout.bounds_at + items.offset(C.tile_q * 8) + row * 8;
  }
  // Of warp 1.
  __device__ Item& own_item() const { return item_at(kLayout.item_slots * kLayout.item_bytes); }
  __device__ Item& item_at(uint32_t bytes) const { return *reinterpret_cast<Item*>(shared + kLayout.items_at + bytes); }

  // With a tile map: the Note of the tile in the stage of k; which keys of that in the stage of v some query of the
  // item sees (p.seen_keys).
  __device__ uint32_t s_note_of_k(const KRing& k) const {
    return s_q + kLayout.notes_at + k.offset(portable::kNoteBytes);
  }
  __device__ uint32_t s_note_of_v(const VRing& v) const {
    return s_q + kLayout.notes_at + kLayout.k_stages * portable::kNoteBytes + v.offset(portable::kNoteBytes);
  }

  __device__ __forceinline__ void init_barriers() const {
    constexpr uint32_t kWarps = 4 * kWarpgroups;
    Items::init(item_barriers(), 1, kWarps + 2);
    for (const int ring : {kBounds, kLoaded}) Items::init(item_barriers() + ring * Items::kBytes, 1, 1);
    for (int of = 0; of < kWarpgroups; ++of) QRing::init(q_barriers() + of * QRing::kBytes, 1, 4);
    KRing::init(k_barriers(), 1, kWarps * C.cluster);
    VRing::init(v_barriers(), 1, kWarps * C.cluster);
    ptx::publish_barriers();
  }

  // Those at the end of each stage of v, by the whole block.
  __device__ __forceinline__ void write_ones() const {
    static_assert(!kSumsByProduct || C.score.element == portable::Element::bf16);
    constexpr uint32_t kOnes = 0x3F803F80;
#pragma unroll 1
    for (int stage = 0; stage < kLayout.v_stages; ++stage) {
      const uint32_t s_ones = s_q + kLayout.v_at + stage * kStageOfV + kLayout.v_bytes;
#pragma unroll 1
      for (int at = static_cast<int>(threadIdx.x) * 16; at < kLayout.ones_bytes; at += kThreads * 16) {
        ptx::store_chunk(s_ones + at, {kOnes, kOnes, kOnes, kOnes});
      }
    }
    ptx::fence_async();
  }

  __device__ bool exists(uint32_t item_idx) const { return item_idx < static_cast<uint32_t>(p.num_items); }

  // By a whole warp: what is to be known of an item that exists. Keys of its rows, of the sequence and of each
  // warpgroup by the lanes side by side.
  __device__ __forceinline__ void write_item(Item& to, const WorkTile& work) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    __syncwarp();  // all have read what was there
    if (lane == 0) {
      to.batch_kv = C.paged ? 0 : batch_of_keys(p.forward, work.batch_idx);
      to.work = work;
      to.sequence = device::sequence<int32_t>(p.forward, work.batch_idx);
      to.queries = portable::tile_queries(to.sequence.len_q, C.tile_q, work.tile_idx);
      to.tiles = {0, 0, 0, 0, 0};
      to.first_tile = 0;
      to.head_kv = p.forward.group.quotient(to.work.head_idx);  // last, read back: loading warps have few registers
    }
    __syncwarp();
    const int32_t first = to.queries.first, last = to.queries.end - 1;
    if (first > last) return;
    // Lanes 2 i and 2 i + 1: first and last row of the tile, the sequence, the warpgroups.
    const int warpgroup = lane / 2 - 2;
    int32_t row = lane % 2 == 0 ? first : last;
    if (lane / 2 == 1) row = lane % 2 == 0 ? 0 : to.sequence.len_q - 1;
    if (warpgroup >= 0) row = min(first + warpgroup * kRows + lane % 2 * (kRows - 1), last);
    const KeyRange own = row_keys(to.sequence, row);
    const KeyRange next = {__shfl_down_sync(kAllLanes, own.begin, 1), __shfl_down_sync(kAllLanes, own.end, 1)};
    KeyTiles tiles = key_tiles<C.tile_kv>(own, next, p.forward.keep_first);
    if constexpr (kStartsNear) {
      // Where all rows see the first key, no row's tiles have a gap in this order.
      const int32_t end_from_first = __shfl_sync(kAllLanes, tiles.full_begin == 0 ? tiles.end : 0, 0);
      const int32_t place = to.sequence.band.position(last);
      const int32_t nearest = place < 0 ? -1 : min(place / C.tile_kv, end_from_first - 1);
      tiles = in_order(tiles, nearest);
      if (lane == 0) to.nearest = nearest;
    }
    if constexpr (kWholeFirst) {
      const bool has_whole = tiles.kept == 0 && tiles.full_begin < tiles.full_end;
      const int32_t num_last = __shfl_sync(kAllLanes, has_whole ? tiles.full_begin - tiles.begin : 0, 0);
      tiles.full_begin -= num_last;
      tiles.full_end -= num_last;
      if (lane == 0) to.num_last = num_last;
    }
    if (lane == 0) {
      to.tiles = tiles;
      to.first_tile = VisitedTiles<false>().next(tiles, nullptr, 0);
      if constexpr (kHasMap) {
        to.map = tile_classes(p.forward, to.work.batch_idx, to.work.head_idx, to.work.tile_idx);
      } else {
        to.least_keys = own.end - next.begin;
      }
    }
    if (lane == 2) {
      to.seen_begin = own.begin;
      to.seen_end = next.end;
    }
    __syncwarp();
    const bool has_rows = first + warpgroup * kRows <= last;
    Share mine = share(has_rows || !kLeavesOut ? tiles : KeyTiles{}, to.tiles);
    if constexpr (kHasMap) leave_out_hidden(to, mine);
    if (lane % 2 == 0 && warpgroup >= 0 && warpgroup < kWarpgroups) to.shares[warpgroup] = mine;
    __syncwarp();
  }
  // Tiles that begin with the first key, counted in the order that begins with `nearest`.
  __device__ __forceinline__ static KeyTiles in_order(const KeyTiles& tiles, int32_t nearest) {
    if (nearest < 0) return tiles;
    const int32_t unseen = max(nearest + 1 - tiles.end, 0), not_full = max(nearest + 1 - tiles.full_end, 0);
    return {0, unseen, tiles.end + unseen, not_full, tiles.full_end + not_full};
  }
  // Leaves the tiles that the map calls hidden out of the item and, in every lane, of a share.
  __device__ __forceinline__ void leave_out_hidden(Item& of, Share& share) const {
    const Share all = share;
    share.first = share.end = share.before = share.behind = 0;
    int32_t first = of.tiles.end;
#pragma unroll 1
    for (int32_t from = of.first_tile / 32 * 32; from < of.tiles.end; from += 32) {
      const auto below = [&](int32_t tile) {  // bits of the tiles below it
        return tile <= from ? 0 : tile - from >= 32 ? ~0u : (1u << (tile - from)) - 1;
      };
      const uint32_t visible = tile_bits(of.tiles, of.map, from).visible;
      const uint32_t inside = visible & below(all.end) & ~below(all.first);
      if (visible != 0) first = min(first, from + __ffs(static_cast<int>(visible)) - 1);
      if (inside != 0) {
        if (share.end == 0) share.first = from + __ffs(static_cast<int>(inside)) - 1;
        share.end = from + 32 - __clz(static_cast<int>(inside));
      }
      share.before += __popc(visible & below(all.first));
      share.behind += __popc(visible & ~below(all.end));
    }
    if (share.end == 0) {
      share.behind += share.before;
      share.before = 0;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) of.first_tile = first;
  }
  __device__ __forceinline__ static Share share(const KeyTiles& of, const KeyTiles& all) {
    if (!kLeavesOut) return {all.kept > 0 ? 0 : all.begin, all.end, of.full_begin, of.full_end, 0, 0};
    const int32_t first = of.kept > 0 ? 0 : of.begin, num_tiles = all.count_before(all.end);
    if (first >= of.end) return {0, 0, 0, 0, 0, num_tiles};
    return {first, of.end, of.full_begin, of.full_end, all.count_before(first), num_tiles - all.count_before(of.end)};
  }
  // The keys of every row, where some tile needs masks.
  __device__ __forceinline__ void write_bounds(const Items& items) const {
    const Item& of = item(items);
    if (!kHasMap && of.tiles.all_are_full()) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x % 32); i < C.tile_q; i += 32) {
      const KeyRange keys = row_keys(of.sequence, of.queries.first + i);
      ptx::store_words(s_bounds(items, i), static_cast<uint32_t>(keys.begin), static_cast<uint32_t>(keys.end));
    }
    __syncwarp();
  }

  // Rows of q and out lie in packed tensors one sequence behind the other.
  __device__ static int32_t batch_of(const portable::TableParams& cu_seqlens, int32_t batch_idx) {
    return cu_seqlens.data != nullptr ? 0 : batch_idx;
  }
  // Blocks: of the cluster that get it.
  template <int Columns, int Blocks = 1>
  __device__ __forceinline__ static void copy_tile(uint32_t to, const portable::TensorMap& map, uint32_t barrier,
                                                   int32_t rows, int32_t first, int32_t head, int32_t batch) {
#pragma unroll
    for (int column = 0; column < Columns; column += 64) {
      const uint32_t panel = to + column / 64 * rows * kRowBytes;
      if constexpr (Blocks > 1) {
        ptx::copy_box_to_all<Blocks>(panel, map, barrier, column, first, head, batch);
      } else {
        ptx::copy_box(panel, map, barrier, column, first, head, batch);
      }
    }
  }

  // Warp 0 finds items for the others. Every block begins with one of its own and takes the next one that nobody has.
  // It does so when k of the latest is under way, not before: an item that waits for its block is one that no idle
  // block can take. The counter is zero again when the last block has found that there is none. Nobody hears of an item
  // without keys. Clusters, whose items all see as many keys, take every gridDim.x-th and leave the counter alone.
  //
  // Warp 1 (writes_rows) writes the rows that need no product, of every gridDim.x-th item, and ends at once where there
  // can be none, so that looking for them takes nothing from the others' instruction cache. Both make their items in
  // one place, as what it takes is long to compile.
  __device__ __forceinline__ void walk_items(bool writes_rows) const {
    if (writes_rows && p.may_have_zero_rows == 0) return;
    Items items(item_barriers());
    const bool is_first_lane = threadIdx.x % 32 == 0;
    uint32_t item_idx = blockIdx.x;
#pragma unroll 1
    while (exists(item_idx)) {
      if (!writes_rows) items.wait_empty();
      Item& of = writes_rows ? own_item() : item(items);
      write_item(of, work_tile<C.cluster>(p.forward, item_idx, 0));
      if (writes_rows) {
        write_zero_rows(of);
      } else if (of.has_keys()) {
        if (is_first_lane) items.arrive_full();
        write_bounds(items);
        if (is_first_lane) items.at(kBounds).arrive_full();
        items.at(kLoaded).wait_full();
        items.advance();
      }
      if (C.cluster > 1 || writes_rows) {
        item_idx += gridDim.x;
      } else {
        const uint32_t taken = is_first_lane ? atomicAdd(p.counter, 1u) : 0;
        if (is_first_lane && taken == static_cast<uint32_t>(p.num_items) - 1) *p.counter = 0;
        item_idx = gridDim.x + __shfl_sync(kAllLanes, taken, 0);
      }
    }
    if (writes_rows) return;
    items.wait_empty();
    if (!is_first_lane) return;
    item(items).batch_kv = -1;
    items.arrive_full();
    items.at(kBounds).arrive_full();
  }
  __device__ __forceinline__ void write_zero_rows(const Item& of) const {
    const ZeroRows<32> rows = {p.forward, of.work, of.sequence, 0, p.forward.head_dim_v, p.forward.out_is_f32 != 0};
    rows.write_without_query(C.tile_q);
    if (!of.has_keys()) rows.write_without_keys(of.queries);
  }

  __device__ static bool is_loader() { return !kLoadsByWarp || threadIdx.x % 32 == 0; }
  // load(item, tile, is_partial) for every key tile of every item, end_item(place) after its last one; by the loader.
  // With a tile map a whole warp is here to walk it, and with pages to load from them.
  template <class Load, class EndItem>
  __device__ __forceinline__ void for_each_tile(const Load& load, const EndItem& end_item) const {
    Items items(item_barriers());
#pragma unroll 1
    for (;; items.advance()) {
      items.wait_full();
      const Item& of = item(items);
      if (!of.exists()) return;
      Visited visited;
#pragma unroll 1
      for (int32_t tile = -1; (tile = visited.next(of.tiles, of.map, tile + 1)) < of.tiles.end;) {
        if (C.paged || is_loader()) load(of, tile, visited.is_partial(tile));
      }
      if (kLoadsByWarp) __syncwarp();  // all have read the item
      if (!is_loader()) continue;
      end_item(items);
      items.arrive_empty();
    }
  }
  // The next tile of k or v, `bytes`, into its ring: to `stage`, with a tile map and a note to s_note.
  template <int Columns, class AnyRing>
  __device__ __forceinline__ void load_keys(AnyRing& ring, uint32_t stage, int32_t bytes,
                                            const portable::TensorMap& map, const Item& of, int32_t tile,
                                            uint32_t s_note, const uint4& note) const {
    const int32_t first_key = of.first_key(tile);
    ring.wait_empty();
    if (kHasMap && is_loader()) {
      ptx::store_chunk(s_note, {note.x, note.y, note.z, note.w});
    }
    if constexpr (C.paged) {
      // A box a lane; behind the last key that key's box again, lest bits depend on what lay there.
      if (is_loader()) ring.arrive_full_expecting(bytes);
      __syncwarp();
      const auto row = static_cast<int32_t>(threadIdx.x % 32) * p.box_kv;
      if (row < C.tile_kv) {
        const int32_t last = (of.sequence.len_kv - 1) / p.box_kv * p.box_kv;
        const PagedRow from = paged_row(p.forward, of.work.batch_idx, min(first_key + row, last));
        copy_tile<Columns>(stage + row * kRowBytes, map, ring.full(), C.tile_kv, from.row, of.head_kv, from.page);
      }
    } else {
      ring.arrive_full_expecting(bytes);
      const int32_t row = C.cluster > 1 ? static_cast<int32_t>(ptx::block_in_cluster()) * kLoadedRows : 0;
      copy_tile<Columns, C.cluster>(stage + row * kRowBytes, map, ring.full(), C.tile_kv,
                                    of.sequence.row_kv + first_key + row, of.head_kv, of.batch_kv);
    }
    ring.advance();
  }

  __device__ __forceinline__ void load_q_and_k() const {
    QRing q(q_barriers());
    KRing k(k_barriers());
    const auto load = [&](const Item& of, int32_t tile, bool is_partial) {
      const int32_t row_q = of.sequence.row_q + of.queries.first;
      const int32_t batch_q = batch_of(p.forward.cu_seqlens_q, of.work.batch_idx);
      // Queries wait in the L2 cache for the slot, where there is but one.
      if (kLayout.q_slots == 1 && tile == of.first_tile && is_loader()) {
#pragma unroll 1
        for (int32_t row = 0; row < C.tile_q; row += kRows) {
#pragma unroll
          for (int column = 0; column < C.head_dim_qk; column += 64) {
            ptx::prefetch_box(p.q, column, row_q + row, of.work.head_idx, batch_q);
          }
        }
      }
      const uint4 note = {kHasMap ? Note::of(of, tile, is_partial).word : 0, 0, 0, 0};
      load_keys<C.head_dim_qk>(k, s_k(k), kLayout.k_bytes, p.k, of, tile, s_note_of_k(k), note);
      if (tile != of.first_tile || !is_loader()) return;
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
        const QRing own = q.at(warpgroup);
        own.wait_empty();
        own.arrive_full_expecting(kQBytes);
        copy_tile<C.head_dim_qk>(s_q_of(own, warpgroup), p.q, own.full(), kRows, row_q + warpgroup * kRows,
                                 of.work.head_idx, batch_q);
      }
      q.advance();
    };
    for_each_tile(load, [](const Items& items) { items.at(kLoaded).arrive_full(); });
  }

  __device__ __forceinline__ void load_v() const {
    VRing v(v_barriers());
    const auto load = [&](const Item& of, int32_t tile, bool is_partial) {
      uint4 note = {~0u, ~0u, ~0u, ~0u};
      if (kHasMap && (is_partial || !of.tiles.is_full(tile))) {
        note = *reinterpret_cast<const uint4*>(seen_keys(p.forward, of.map + tile));
      }
      load_keys<C.head_dim_v>(v, s_v(v), kLayout.v_bytes, p.v, of, tile, s_note_of_v(v), note);
    };
    for_each_tile(load, [](const Items&) {});
  }
};

}  // namespace tessella::device
