// The work of a call of few queries: units (a block of packed rows (query_tile.hpp) of some KV heads) and pieces of
// their keys for threads.
//
// If the rows of KV heads are adjacent, a unit has several heads, which go over the keys together: the rows of a single
// head are short and far apart, and reading them reaches little more than half of the memory bandwidth.
//
// Keys are split at multiples of a constant, for any number of threads, and the results of a unit's splits are merged
// as the leaves of a binary tree over all keys. A piece is a subtree that one thread computes. The choice of pieces
// does not change the result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::cpu {

inline constexpr int kRunKeys = 256;         // keys whose scores are there at a time
inline constexpr int kDecodeQueryTiles = 3;  // at most, of a block
inline constexpr int kDecodeHeads = 16;      // at most, of a unit
inline constexpr int kLeastSplit = 512;      // keys; a multiple of kRunKeys
inline constexpr int kLongestSplit = 4096;

// Keys of a split: about half a megabyte of K and V. Depends on head dims and dtypes alone.
int64_t split_keys(const core::AttentionShape& shape);
// Packed rows of a block; no rows of more than one sequence.
int64_t decode_block_rows(const core::AttentionShape& shape);
// Bounds for the rows of all heads of a unit and for its query tiles.
int64_t decode_unit_rows(const core::AttentionShape& shape);
int64_t decode_unit_query_tiles(const core::AttentionShape& shape);

// Keys that some row of a block sees: [0, keep_end) and [begin, end).
struct SeenKeys {
  int64_t keep_end = 0;
  int64_t begin = 0;
  int64_t end = 0;

  // The first at or after `key`, or kNone.
  static constexpr int64_t kNone = INT64_MAX;
  int64_t next(int64_t key) const {
    if (key < keep_end) return key;
    const int64_t next = std::max(key, begin);
    return next < end ? next : kNone;
  }
};
SeenKeys seen_keys(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t row_begin,
                   int64_t row_end);

// Subtrees of 2^level splits that hold a visible key: [0, keep_end) and [first, end).
struct Subtrees {
  int64_t keep_end = 0;
  int64_t first = 0;
  int64_t end = 0;
  int64_t count() const { return keep_end + end - first; }
  int64_t at(int64_t idx) const { return idx < keep_end ? idx : first + idx - keep_end; }
};
Subtrees subtrees(const SeenKeys& seen, int64_t split_keys, int level);

struct DecodePiece {
  int64_t batch_idx = 0;  // -1: rows of no sequence, counted from row 0 of the tensor
  int64_t kv_head = 0;    // the first
  int64_t num_heads = 1;
  int64_t row_begin = 0;  // packed rows
  int64_t num_rows = 0;
  int64_t first_split = 0;
  int64_t end_split = 0;
  int level = 0;           // the piece is a subtree of 2^level splits
  int64_t num_pieces = 1;  // of the unit
  int64_t unit = 0;        // index among all units
  int64_t slot = 0;        // of results: the piece's own; those of the unit's pieces follow each other
  int64_t first_slot = 0;
};

class DecodeUnits {
 public:
  // Bounds for any call whose sizes are at most those of the shape.
  static int64_t most_units(const core::AttentionShape& shape);
  static int64_t most_slots(const core::AttentionShape& shape, int num_threads);
  static int64_t scratch_bytes(const core::AttentionShape& shape);

  // scratch: aligned for int64_t; must outlive this.
  DecodeUnits(const core::AttentionArguments& arguments, int num_threads, void* scratch);

  int num_threads() const { return num_threads_; }  // one, where waking another would take longer than the work
  int64_t num_pieces() const { return num_pieces_; }
  int64_t num_units() const { return num_blocks_ * block_units_; }
  int32_t pieces_of(int64_t unit) const { return static_cast<int32_t>(blocks_[unit / block_units_].num_pieces); }
  DecodePiece piece(int64_t idx) const;

 private:
  struct Block {  // the same rows of every KV head
    int64_t row_begin;
    int64_t cost;
    int64_t first_piece;  // of its first unit; others' follow
    int64_t first_slot;
    int64_t num_pieces;  // of each unit
    SeenKeys seen;
    int32_t level;
    int32_t batch_idx;
    int32_t num_rows;
  };
  void add_blocks(int64_t batch_idx, int64_t row_begin, int64_t row_end, int64_t block_rows);
  int64_t heads_of_unit(int64_t block_rows) const;
  void cut(Block& block, double most_pieces) const;

  const core::AttentionArguments* arguments_;
  int64_t unit_heads_ = 1;
  int64_t block_units_ = 1;  // units of a block
  int64_t split_keys_ = 0;
  int num_threads_ = 1;
  int64_t num_blocks_ = 0;
  int64_t num_pieces_ = 0;
  Block* blocks_ = nullptr;
};

}  // namespace tessella::cpu
