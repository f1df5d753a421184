// Work tiles of a forward pass: one KV head and a run of its packed rows (query_tile.hpp), most expensive first.
//
// Work tiles depend on sizes and threads only for balance: a row's result does not depend on which work tile computes
// it. Every row of the out tensor belongs to exactly one work tile, also those of no query: past a sequence's length,
// or between the sequences of a packed tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile_map.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu {

struct WorkTile {
  int64_t batch_idx = 0;  // -1: rows of no sequence, counted from row 0 of the tensor
  int64_t kv_head = 0;
  int64_t row_begin = 0;  // packed rows: row = query * group + head in the group
  int64_t num_rows = 0;
};

// Rows of one KV head over all sequences.
int64_t packed_rows(const core::AttentionShape& shape);

// Rows a work tile should have: a multiple of query_tile_rows, at most max_query_tiles query tiles, few enough that
// every thread gets several work tiles.
int64_t work_tile_rows(const core::AttentionShape& shape, int num_threads, int query_tile_rows, int max_query_tiles);

class WorkTiles {
 public:
  // Memory for the list; a bound for all work tile sizes of at least query_tile_rows.
  static int64_t scratch_bytes(const core::AttentionShape& shape, int query_tile_rows);

  // map: of query tiles whose multiples work tiles are. scratch: aligned for int64_t; must outlive this.
  WorkTiles(const core::AttentionArguments& arguments, const TileMap& map, int64_t rows_per_work_tile, void* scratch);

  int64_t size() const { return num_blocks_ * heads_kv_; }
  WorkTile operator[](int64_t idx) const;

 private:
  struct Block {  // the same rows of every KV head
    int64_t row_begin;
    int64_t cost;
    int32_t batch_idx;
    int32_t num_rows;
  };
  void add_rows(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t rows_per_work_tile);

  const core::AttentionArguments* arguments_;
  const TileMap* map_;
  int64_t heads_kv_ = 0;
  int64_t num_blocks_ = 0;
  Block* blocks_ = nullptr;
};

// Writes output 0 and LSE -inf to rows that see nothing because they are no queries.
void fill_hidden_rows(const core::AttentionArguments& arguments, const WorkTile& work_tile, int64_t row_begin,
                      int64_t row_end);

}  // namespace tessella::cpu
