// A block of forward_sm90: its shared memory, the rings by which its warps hand on buffers, and the warps that load.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/tile/ring.cuh"
#include "cuda/device/tile/rows.cuh"
#include "cuda/device/tile/zero_rows.cuh"
#include "cuda/kernels/forward_sm90/query_tile_sm90.cuh"
#include "cuda/kernels/forward_sm90/scales.cuh"
#include "cuda/kernels/forward_sm90/transposed_v.cuh"

namespace tessella::device {

using portable::ForwardSm90Params;

template <ForwardSm90Config C>
struct BlockSm90 {
  using QueryTile = QueryTileSm90<C>;
  using Summary = TileSummary<C>;
  static constexpr int kRows = QueryTile::kRows;  // of a warpgroup
  static constexpr int kWarpgroups = QueryTile::kWarpgroups;
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  // A launch gives all threads the same number, a multiple of 8; what loading warps give up multiplying ones take.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kLoadRegisters = kWarpgroups == 3 ? 32 : 40;
  static constexpr int kMultiplyRegisters = kWarpgroups == 3 ? 160 : 232;
  static_assert(kLoadRegisters + kWarpgroups * kMultiplyRegisters <= (1 + kWarpgroups) * kLaunchRegisters);
  static constexpr portable::ForwardSm90Layout kLayout = portable::forward_sm90_layout(C);
  static_assert(sizeof(QueryTile) <= kLayout.query_tile_bytes);
  static constexpr int kRowBytes = 128;  // of a panel of columns
  static constexpr int kPanelColumns = portable::box_columns(C.score.elements.q);
  static constexpr int kQBytes = kLayout.q_bytes / kWarpgroups;  // of a warpgroup's queries
  static constexpr bool kHasMap = QueryTile::kHasMap;
  // By a warp, of which a lane copies a box of a page or a key's factor; or by a warp of which one thread copies, and
  // else by one thread.
  static constexpr bool kLanesLoad = C.paged || C.scales == portable::KeyScales::key;
  static constexpr bool kLoadsByWarp = kHasMap || kLanesLoad;

  // A slot's fills: the query tile is written; kBounds, the bounds of its rows are; kLoaded, its last k is under way.
  static constexpr int kWritten = 0, kBounds = 1, kLoaded = 2;
  using QueryTiles = Ring<kLayout.query_tile_slots, portable::kQueryTileFills>;
  // Each warpgroup's own, whichever rows are its: so it meets each phase.
  using QRing = Ring<kLayout.q_slots>;
  using KRing = Ring<kLayout.k_stages>;
  using VRing = Ring<kLayout.v_stages>;
  static_assert(kLayout.barriers_at + QueryTiles::kBytes + kWarpgroups * QRing::kBytes + KRing::kBytes +
                    VRing::kBytes ==
                kLayout.bytes);

  const ForwardSm90Params& p;
  char* shared;
  uint32_t s_q;

  __device__ __forceinline__ BlockSm90(const ForwardSm90Params& params, char* shared_memory)
      : p(params), shared(shared_memory), s_q(ptx::shared_address(shared_memory)) {}

  __device__ uint32_t query_tile_barriers() const { return s_q + kLayout.barriers_at; }
  __device__ uint32_t q_barriers() const { return query_tile_barriers() + QueryTiles::kBytes; }
  __device__ uint32_t k_barriers() const { return q_barriers() + kWarpgroups * QRing::kBytes; }
  __device__ uint32_t v_barriers() const { return k_barriers() + KRing::kBytes; }
  // Buffers of the slots where rings stand.
  __device__ uint32_t s_q_of(const typename QRing::Base& q, int warpgroup) const {
    return s_q + q.offset(kLayout.q_bytes) + warpgroup * kQBytes;
  }
  __device__ uint32_t s_k(const KRing& k) const { return s_q + kLayout.k_at + k.offset(kLayout.k_bytes); }
  __device__ uint32_t s_v(const VRing& v) const { return s_q + kLayout.v_at + v.offset(kLayout.v_bytes); }
  __device__ QueryTile& query_tile(const QueryTiles& at) const {
    return *reinterpret_cast<QueryTile*>(shared + kLayout.query_tiles_at + at.offset(kLayout.query_tile_bytes));
  }
  __device__ QueryTile& query_tile_at(int32_t slot) const {
    return *reinterpret_cast<QueryTile*>(shared + kLayout.query_tiles_at + slot * kLayout.query_tile_bytes);
  }
  __device__ uint32_t s_bounds(const QueryTiles& at, int row) const {
    return s_q + kLayout.bounds_at + at.offset(C.tile_q * 8) + row * 8;
  }
  // With a tile map: the Summary of the tile in the stage of k; which keys of that in the stage of v some query of the
  // query tile sees (TileMapParams::seen_keys).
  __device__ uint32_t s_summary(const KRing& k) const {
    return s_q + kLayout.summaries_at + k.offset(portable::kSummaryBytes);
  }
  __device__ uint32_t s_seen_keys(const VRing& v) const {
    return s_q + kLayout.summaries_at + kLayout.k_stages * portable::kSummaryBytes + v.offset(portable::kSummaryBytes);
  }
  // With scales: the factors of the keys in the stage of k, and of those in the stage of v.
  __device__ uint32_t s_scales_of_k(const KRing& k) const {
    return s_q + kLayout.scales_at + k.offset(kLayout.scale_bytes);
  }
  __device__ uint32_t s_scales_of_v(const VRing& v) const {
    return s_q + kLayout.scales_at + kLayout.k_stages * kLayout.scale_bytes + v.offset(kLayout.scale_bytes);
  }

  __device__ __forceinline__ void init_barriers() const {
    constexpr uint32_t kWarps = 4 * kWarpgroups;
    QueryTiles::init(query_tile_barriers(), 1, kWarps + 2);
    for (int of = 0; of < kWarpgroups; ++of) QRing::init(q_barriers() + of * QRing::kBytes, 1, 4);
    KRing::init(k_barriers(), 1, kWarps);
    VRing::init(v_barriers(), 1, kWarps);
    ptx::publish_barriers();
  }

  __device__ bool exists(uint32_t query_tile_idx) const {
    return query_tile_idx < static_cast<uint32_t>(p.num_query_tiles);
  }

  // Warp 0 finds query tiles for the others. Every block begins with one of its own and takes the next one that nobody
  // has. It does so when k of the latest is under way, not before: a query tile that waits for its block is one that no
  // idle block can take. The counter is zero again when the last block has found that there is none. Query tiles
  // without keys are not handed on.
  __device__ __forceinline__ void find_query_tiles() const {
    QueryTiles query_tiles(query_tile_barriers());
    const bool is_first_lane = threadIdx.x % 32 == 0;
    uint32_t idx = blockIdx.x;
#pragma unroll 1
    while (exists(idx)) {
      query_tiles.wait_empty();
      QueryTile& of = query_tile(query_tiles);
      of.find_rows(p.forward, work_tile(p.forward.tiling, p.forward.sequences.heads_q, static_cast<int32_t>(idx), 0));
      of.find_keys(p.forward);
      if (of.has_keys()) {
        if (is_first_lane) query_tiles.template arrive_full<kWritten>();
        write_bounds(query_tiles);
        if (is_first_lane) query_tiles.template arrive_full<kBounds>();
        query_tiles.template wait_full<kLoaded>();
        query_tiles.advance();
      }
      const uint32_t taken = is_first_lane ? atomicAdd(p.counter, 1u) : 0;
      if (is_first_lane && taken == static_cast<uint32_t>(p.num_query_tiles) - 1) *p.counter = 0;
      idx = gridDim.x + __shfl_sync(kAllLanes, taken, 0);
    }
    query_tiles.wait_empty();
    if (!is_first_lane) return;
    query_tile(query_tiles).batch_kv = -1;
    query_tiles.template arrive_full<kWritten>();
    query_tiles.template arrive_full<kBounds>();
  }
  // The keys of every row, where some tile needs masks.
  __device__ __forceinline__ void write_bounds(const QueryTiles& at) const {
    const QueryTile& of = query_tile(at);
    if (!kHasMap && of.tiles.all_are_full()) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x % 32); i < C.tile_q; i += 32) {
      const KeyRange keys = row_keys(of.sequence, of.queries.first + i);
      ptx::store_words(s_bounds(at, i), static_cast<uint32_t>(keys.begin), static_cast<uint32_t>(keys.end));
    }
    __syncwarp();
  }

  // Warp 1 writes the rows that need no product, of every gridDim.x-th query tile. It ends at once where there can be
  // none, so that looking for them takes nothing from the others' instruction cache.
  __device__ __forceinline__ void write_zero_rows() const {
    if (p.may_have_zero_rows == 0) return;
    const portable::ForwardParams& f = p.forward;
    QueryTile& of = query_tile_at(kLayout.query_tile_slots);  // one that is not handed on
#pragma unroll 1
    for (uint32_t idx = blockIdx.x; exists(idx); idx += gridDim.x) {
      of.find_rows(f, work_tile(f.tiling, f.sequences.heads_q, static_cast<int32_t>(idx), 0));
      const ZeroRows<32> rows = {
          f.output, of.work, of.sequence, 0, f.inputs.head_dim_v, f.output.out_element == portable::Element::f32};
      rows.write_without_query(C.tile_q, f.tiling.tiles_q);
      if (of.queries.first >= of.queries.end) continue;
      const KeyTiles tiles = key_tiles<C.tile_kv>(row_keys(of.sequence, of.queries.first),
                                                  row_keys(of.sequence, of.queries.end - 1), f.masks.keep_first);
      const uint8_t* map =
          kHasMap ? tile_classes(f.tile_map, of.work.batch_idx, of.work.head_idx, of.work.tile_idx) : nullptr;
      if (VisitedTiles<kHasMap>().next(tiles, map, 0) >= tiles.end) rows.write_without_keys(of.queries, f.scores.sink);
    }
  }

  // Rows of q and out lie in packed tensors one sequence behind the other.
  __device__ static int32_t batch_of(const portable::TableParams& cu_seqlens, int32_t batch_idx) {
    return cu_seqlens.data != nullptr ? 0 : batch_idx;
  }
  template <int Columns>
  __device__ __forceinline__ static void copy_tile(uint32_t to, const portable::TensorMap& map, uint32_t barrier,
                                                   int32_t rows, int32_t first, int32_t head, int32_t batch) {
#pragma unroll
    for (int column = 0; column < Columns; column += kPanelColumns) {
      ptx::copy_box(to + column / kPanelColumns * rows * kRowBytes, map, barrier, column, first, head, batch);
    }
  }

  __device__ static bool is_loader() { return !kLoadsByWarp || threadIdx.x % 32 == 0; }
  // load(query_tile, tile, is_partial) for every key tile of every query tile, end(ring) after its last one; by the
  // loader. With a tile map a whole warp is here to walk it, and with pages to load from them.
  template <class Load, class End>
  __device__ __forceinline__ void for_each_tile(const Load& load, const End& end) const {
    QueryTiles query_tiles(query_tile_barriers());
#pragma unroll 1
    for (;; query_tiles.advance()) {
      query_tiles.template wait_full<kWritten>();
      const QueryTile& of = query_tile(query_tiles);
      if (!of.exists()) return;
      VisitedTiles<kHasMap> visited;
#pragma unroll 1
      for (int32_t tile = -1; (tile = visited.next(of.tiles, of.map, tile + 1)) < of.tiles.end;) {
        if (kLanesLoad || is_loader()) load(of, tile, visited.is_partial(tile));
      }
      if (kLoadsByWarp) __syncwarp();  // all have read the query tile
      if (!is_loader()) continue;
      end(query_tiles);
      query_tiles.arrive_empty();
    }
  }
  // Factors of the tile's keys, those of `scale`, to s_scales. Where each key has its own, that of a key which
  // is_seen(column) denies is 0: it may hold anything.
  template <class IsSeen>
  __device__ __forceinline__ void store_scales(const portable::OperandParams& scale, const QueryTile& of, int32_t tile,
                                               uint32_t s_scales, const IsSeen& is_seen) const {
    if constexpr (C.scales == portable::KeyScales::none) return;
    constexpr bool kOfKeys = C.scales == portable::KeyScales::key;
    constexpr int kKeys = kOfKeys ? C.tile_kv : 1;
    const int32_t first_key = of.first_key(tile);
#pragma unroll 1
    for (int i = kOfKeys ? static_cast<int>(threadIdx.x % 32) : 0; i < kKeys; i += 32) {
      const int32_t key = min(first_key + i, of.sequence.len_kv - 1);
      const float factor = !kOfKeys || is_seen(i)
                               ? key_scale(p.forward.sequences, p.scale_block, scale, of.work.batch_idx, of.batch_kv,
                                           of.head_kv, of.sequence.row_kv + key)
                               : 0.0f;
      ptx::store_word(s_scales + i * 4, __float_as_uint(factor));
    }
    if (kOfKeys) __syncwarp();
  }
  // The next tile of k or v, `bytes`, into its ring: to `stage`, and with a tile map its 16 bytes of masks to s_masks.
  template <int Columns, class AnyRing>
  __device__ __forceinline__ void load_keys(AnyRing& ring, uint32_t stage, int32_t bytes,
                                            const portable::TensorMap& map, const QueryTile& of, int32_t tile,
                                            uint32_t s_masks, const uint4& masks, const portable::OperandParams& scale,
                                            uint32_t s_scales) const {
    const int32_t first_key = of.first_key(tile);
    ring.wait_empty();
    if (kHasMap && is_loader()) ptx::store_chunk(s_masks, {masks.x, masks.y, masks.z, masks.w});
    store_scales(scale, of, tile, s_scales, [](int) { return true; });  // scores of unseen keys are hidden
    if constexpr (C.paged) {
      // Each lane copies a box. Behind the last key it copies that key's box again: bits must not depend on old pages.
      if (is_loader()) ring.arrive_full_expecting(bytes);
      __syncwarp();
      const auto row = static_cast<int32_t>(threadIdx.x % 32) * p.box_kv;
      if (row < C.tile_kv) {
        const int32_t last = (of.sequence.len_kv - 1) / p.box_kv * p.box_kv;
        const PagedRow from = paged_row(p.forward.sequences, of.work.batch_idx, min(first_key + row, last));
        copy_tile<Columns>(stage + row * kRowBytes, map, ring.full(), C.tile_kv, from.row, of.head_kv, from.page);
      }
    } else if (!kLanesLoad || is_loader()) {
      ring.arrive_full_expecting(bytes);
      copy_tile<Columns>(stage, map, ring.full(), C.tile_kv, of.sequence.row_kv + first_key, of.head_kv, of.batch_kv);
    }
    ring.advance();
  }

  // A tile of v whose keys are contiguous, likewise.
  __device__ __forceinline__ void load_transposed(VRing& v, const QueryTile& of, int32_t tile,
                                                  const uint4& masks) const {
    static_assert(!portable::is_transposed_v(C) || C.tile_kv == 128 || C.tile_kv == 64);
    v.wait_empty();
    if (kHasMap && is_loader()) ptx::store_chunk(s_seen_keys(v), {masks.x, masks.y, masks.z, masks.w});
    store_scales(p.v_scale, of, tile, s_scales_of_v(v), [&](int column) {
      if constexpr (kHasMap) {
        const uint32_t word = column < 32 ? masks.x : column < 64 ? masks.y : column < 96 ? masks.z : masks.w;
        return (word >> column % 32 & 1) != 0;
      }
      return KeyRange{of.seen_begin, of.seen_end}.sees(of.first_key(tile) + column, p.forward.masks.keep_first);
    });
    if (!kLanesLoad || is_loader()) {
      v.arrive_full_expecting(kLayout.v_bytes);
      // A tile whose factor is 0 is one of zeros, which the engine finds behind the last head.
      const bool is_zero = C.scales == portable::KeyScales::tile && ptx::load_word(s_scales_of_v(v)) << 1 == 0;
      const int32_t first = transposed_at(p.forward.sequences, of.work.batch_idx, of.sequence) + of.first_key(tile);
      ptx::copy_box(s_v(v), p.v, v.full(), first, 0, is_zero ? p.forward.sequences.heads_q.value : of.head_kv,
                    batch_of(p.forward.sequences.cu_seqlens_kv, of.work.batch_idx));
    }
    v.advance();
  }

  // Around the query tile's groups of 64 rows.
  __device__ static int row_group_behind(int row_group) { return row_group < kWarpgroups - 1 ? row_group + 1 : 0; }
  // A warpgroup's in the next query tile. Where warpgroups skip tiles, their rows rotate, so that all have as much to
  // do.
  __device__ static int next_row_group(int row_group) {
    return QueryTile::kSkips ? row_group_behind(row_group) : row_group;
  }

  // Warp 2.
  __device__ __forceinline__ void load_q_and_k() const {
    Rings<QRing> q(q_barriers());
    KRing k(k_barriers());
    int row_group = 0;  // of the first warpgroup
    const auto load = [&](const QueryTile& of, int32_t tile, bool is_partial) {
      const int32_t row_q = of.sequence.row_q + of.queries.first;
      const int32_t batch_q = batch_of(p.forward.sequences.cu_seqlens_q, of.work.batch_idx);
      // Queries wait in the L2 cache for the slot, where there is but one.
      if (kLayout.q_slots == 1 && tile == of.first_tile && is_loader()) {
#pragma unroll 1
        for (int32_t row = 0; row < C.tile_q; row += kRows) {
#pragma unroll
          for (int column = 0; column < C.head_dim_qk; column += kPanelColumns) {
            ptx::prefetch_box(p.q, column, row_q + row, of.work.head_idx, batch_q);
          }
        }
      }
      const uint4 summary = {kHasMap ? Summary::of(of, tile, is_partial).word : 0, 0, 0, 0};
      load_keys<C.head_dim_qk>(k, s_k(k), kLayout.k_bytes, p.k, of, tile, s_summary(k), summary, p.k_scale,
                               s_scales_of_k(k));
      if (tile != of.first_tile || !is_loader()) return;
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
        const auto own = q[warpgroup];
        own.wait_empty();
        own.arrive_full_expecting(kQBytes);
        copy_tile<C.head_dim_qk>(s_q_of(own, warpgroup), p.q, own.full(), kRows, row_q + row_group * kRows,
                                 of.work.head_idx, batch_q);
        row_group = row_group_behind(row_group);
      }
      row_group = next_row_group(row_group);
      q.advance();
    };
    for_each_tile(load, [](const QueryTiles& query_tiles) { query_tiles.template arrive_full<kLoaded>(); });
  }

  // Warp 3.
  __device__ __forceinline__ void load_v() const {
    VRing v(v_barriers());
    const auto load = [&](const QueryTile& of, int32_t tile, bool is_partial) {
      uint4 seen = {~0u, ~0u, ~0u, ~0u};
      if (kHasMap && (is_partial || !of.tiles.is_full(tile))) {
        seen = *reinterpret_cast<const uint4*>(seen_keys(p.forward.tile_map, of.map + tile));
      }
      if constexpr (portable::is_transposed_v(C)) {
        load_transposed(v, of, tile, seen);
      } else {
        load_keys<C.head_dim_v>(v, s_v(v), kLayout.v_bytes, p.v, of, tile, s_seen_keys(v), seen, p.v_scale,
                                s_scales_of_v(v));
      }
    };
    for_each_tile(load, [](const QueryTiles&) {});
  }
};

}  // namespace tessella::device
