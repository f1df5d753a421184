// What the threads of one call of forward_amx share: sizes that follow from the call's bounds, memory, and how far each
// pair is.
//
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/cancel.hpp"
#include "cpu/amx/pipeline-inl.hpp"
#include "cpu/memory.hpp"
#include "cpu/tile_map.hpp"
#include "cpu/work_tiles.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu::amx {

// Of K and V packed at a time, or one KV head if that is more.
inline constexpr int64_t kPackedBytes = int64_t{32} << 20;
// Of K and V tiles: a quarter of L2, beside the query tiles' O and Q.
inline constexpr int64_t kChunkBytes = int64_t{512} << 10;
inline constexpr int64_t kQueryTileBytes = int64_t{512} << 10;  // of query tiles that go through a chunk together
inline constexpr int64_t kMaxWavePairs = 4096;                  // bounds the memory of their progress
inline constexpr int kPackUnits = 2;                            // a task of packing
inline constexpr int kMaxQueryTiles = 16;
inline constexpr MapTiling kAmxMap = {kRows, kBlockKeys};
// In the pipeline at once if every query tile has one block: S, P, P.V, finish.
inline constexpr int kLiveQueryTiles = 4;

// Sizes that follow from the call's bounds.
struct Layout {
  int qk_steps, v_panels;
  int64_t unit_keys;
  int64_t k_unit, v_unit;  // elements of a packed unit
  int64_t units;           // of the longest sequence
  int64_t pair_elements;
  int64_t pairs, wave_pairs;
  int64_t packed_bytes, progress_bytes;
  int64_t chunk_units;
  int64_t rows_per_work_tile;
  int64_t num_query_tiles;  // states of a worker
  int64_t q_elements, o_floats;
  int64_t query_tile_bytes, worker_bytes;

  Layout(const core::AttentionShape& p, int num_threads) {
    qk_steps = static_cast<int>(ceil_div(p.head_dim_qk, kStepDims));
    v_panels = static_cast<int>(ceil_div(p.head_dim_v, kStepDims));
    const int64_t blocks = unit_blocks(v_panels);
    unit_keys = blocks * kBlockKeys;
    k_unit = blocks * qk_steps * kPairElements;
    v_unit = blocks * v_panels * kPairElements;
    units = ceil_div(p.seqlen_kv, unit_keys);
    pair_elements = units * (k_unit + v_unit);
    pairs = p.batch * p.heads_kv;
    // One thread takes a pair at a time: what it has packed is still in L2. Bytes never grow as sizes shrink, so a
    // plan for longer sequences serves shorter ones.
    const int64_t pair_bytes = 2 * pair_elements;
    packed_bytes = num_threads == 1 ? pair_bytes : std::max(pair_bytes, std::min(pairs * pair_bytes, kPackedBytes));
    wave_pairs = std::clamp<int64_t>(pair_bytes == 0 ? pairs : packed_bytes / pair_bytes, 1, kMaxWavePairs);
    progress_bytes = 64 * std::clamp<int64_t>(pairs, 1, kMaxWavePairs);
    chunk_units = std::max<int64_t>(1, kChunkBytes / (2 * (k_unit + v_unit)));
    q_elements = qk_steps * kPairElements;
    o_floats = v_panels * 4 * kTileFloats;
    query_tile_bytes = ceil_div(sizeof(QueryTileWork), 64) * 64 + 2 * q_elements + 4 * o_floats;
    const int max_query_tiles =
        static_cast<int>(std::clamp<int64_t>(kQueryTileBytes / query_tile_bytes, kLiveQueryTiles, kMaxQueryTiles));
    rows_per_work_tile = work_tile_rows(p, num_threads, kRows, max_query_tiles);
    num_query_tiles = kLiveQueryTiles;
    if (units > chunk_units) {
      num_query_tiles = std::clamp<int64_t>(ceil_div(p.seqlen_q * p.group(), kRows), kLiveQueryTiles, max_query_tiles);
    }
    worker_bytes = 4 * (2 * kBlockFloats + 4 * kTileFloats) + 2 * (2 * blocks * kPairElements) +
                   num_query_tiles * query_tile_bytes;
  }
};

// The progress of all threads on one pair.
struct alignas(64) Progress {
  std::atomic<int64_t> next_pack{0};
  std::atomic<int64_t> packed{0};
  std::atomic<int64_t> next_work_tile{0};
};

struct Call {
  const core::AttentionArguments& p;
  const Layout layout;
  const TileMap map;
  BlockContext block;
  std::byte* packed = nullptr;
  Progress* progress = nullptr;  // one a pair of the wave
  std::byte* workers = nullptr;
  mutable std::atomic<bool> is_cancelled{false};

  int64_t pack_tasks() const { return ceil_div(layout.units, kPackUnits); }
  int64_t num_work_tiles() const { return ceil_div(p.seqlen_q * p.group(), layout.rows_per_work_tile); }

  // Throws once the call is cancelled. Stays so, as threads wait for what others pack.
  void end_if_cancelled() const {
    if (!is_cancelled.load(std::memory_order_relaxed)) {
      if (!core::is_cancelled(p.cancel)) return;
      is_cancelled.store(true, std::memory_order_relaxed);
    }
    _mm256_zeroupper();
    throw core::Cancelled();
  }

  uint16_t* k_tiles(int64_t slot) const { return reinterpret_cast<uint16_t*>(packed) + slot * layout.pair_elements; }
  uint16_t* v_tiles(int64_t slot) const { return k_tiles(slot) + layout.units * layout.k_unit; }
};

// Computes rows [row_begin, row_end) of a pair, all of them queries. kLse: LSE is wanted. Each in a source of its own:
// forward_rows.cpp.in.
template <bool kLse>
void attend_rows(const Call& call, int64_t pair, int64_t slot, int64_t row_begin, int64_t row_end, int worker);

}  // namespace tessella::cpu::amx
