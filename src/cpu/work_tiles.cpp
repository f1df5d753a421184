// Cuts the rows of all sequences into work tiles and orders them by estimated work.
#include "cpu/work_tiles.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "cpu/memory.hpp"
#include "cpu/query_tile.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::cpu {
namespace {

constexpr int64_t kWorkTilesPerThread = 8;  // enough for a causal triangle to level out

// About the number of visible scores of rows [row_begin, row_end), plus a constant for loading and storing a row.
int64_t estimate_cost(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map, int64_t row_begin,
                      int64_t row_end) {
  constexpr int64_t kRowCost = 16;
  const int64_t rows = std::min(row_end, s.len_q * p.group()) - row_begin;
  if (rows <= 0) return 0;
  const int64_t first = row_begin / p.group();
  const int64_t last = (row_begin + rows - 1) / p.group();
  const auto keys = [&](int64_t i) { return s.band.end(i) - s.band.begin(i); };
  const int64_t in_band = rows * (keys(first) + keys(last)) / 2;
  return std::min(in_band, map.num_scores(s, row_begin, row_begin + rows)) + rows * kRowCost;
}

}  // namespace

int64_t packed_rows(const core::AttentionShape& p) {
  return (p.features.has(core::Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q) * p.group();
}

int64_t work_tile_rows(const core::AttentionShape& shape, int num_threads, int query_tile_rows, int max_query_tiles) {
  const int64_t wanted_rows = ceil_div(packed_rows(shape) * shape.heads_kv, num_threads * kWorkTilesPerThread);
  const int64_t query_tiles = std::clamp<int64_t>(ceil_div(wanted_rows, query_tile_rows), 1, max_query_tiles);
  // Divides a sequence into equal work tiles instead of full ones and a short one.
  const int64_t sequence_query_tiles = std::max<int64_t>(1, ceil_div(shape.seqlen_q * shape.group(), query_tile_rows));
  return ceil_div(sequence_query_tiles, ceil_div(sequence_query_tiles, query_tiles)) * query_tile_rows;
}

int64_t WorkTiles::scratch_bytes(const core::AttentionShape& shape, int query_tile_rows) {
  // Each sequence has at most one work tile that is not full; a packed tensor has rows past its sequences.
  const int64_t blocks = packed_rows(shape) / query_tile_rows + shape.batch + 1;
  return blocks * static_cast<int64_t>(sizeof(Block));
}

WorkTiles::WorkTiles(const core::AttentionArguments& arguments, const TileMap& map, int64_t rows_per_work_tile,
                     void* scratch)
    : arguments_(&arguments), map_(&map), heads_kv_(arguments.heads_kv), blocks_(static_cast<Block*>(scratch)) {
  const int64_t group = arguments.group();
  if (arguments.cu_seqlens_q) {
    add_rows(-1, arguments.cu_seqlens_q.at(0, arguments.batch) * group, arguments.total_q * group, rows_per_work_tile);
  }
  for (int64_t b = 0; b < arguments.batch; ++b) {
    add_rows(b, 0, core::sequence(arguments, b).slots_q * group, rows_per_work_tile);
  }
  std::sort(blocks_, blocks_ + num_blocks_, [](const Block& a, const Block& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.batch_idx != b.batch_idx ? a.batch_idx < b.batch_idx : a.row_begin < b.row_begin;
  });
}

void WorkTiles::add_rows(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t rows_per_work_tile) {
  if (row_begin >= row_end) return;
  core::Sequence sequence;
  if (batch_idx >= 0) sequence = core::sequence(*arguments_, batch_idx);
  for (int64_t row = row_begin; row < row_end; row += rows_per_work_tile) {
    const int64_t end = std::min(row + rows_per_work_tile, row_end);
    const int64_t cost = batch_idx < 0 ? 0 : estimate_cost(*arguments_, sequence, *map_, row, end);
    new (blocks_ + num_blocks_++) Block{row, cost, static_cast<int32_t>(batch_idx), static_cast<int32_t>(end - row)};
  }
}

WorkTile WorkTiles::operator[](int64_t idx) const {
  const Block& block = blocks_[idx / heads_kv_];
  return {block.batch_idx, idx % heads_kv_, block.row_begin, block.num_rows};
}

void fill_hidden_rows(const core::AttentionArguments& arguments, const WorkTile& work_tile, int64_t row_begin,
                      int64_t row_end) {
  const int64_t group = arguments.group();
  const int64_t batch_idx = std::max<int64_t>(work_tile.batch_idx, 0);
  const int64_t row_q = work_tile.batch_idx < 0 ? 0 : core::sequence(arguments, batch_idx).row_q;
  const size_t row_bytes = static_cast<size_t>(arguments.head_dim_v * core::size_bytes(arguments.out().dtype));
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t tensor_row = row_q + row / group;
    const int64_t head = work_tile.kv_head * group + row % group;
    std::memset(arguments.out().row(batch_idx, tensor_row, head), 0, row_bytes);
    if (arguments.lse().data != nullptr) {
      store_lse(arguments.lse(), batch_idx, tensor_row, head, -std::numeric_limits<double>::infinity());
    }
  }
}

}  // namespace tessella::cpu
