// Arguments of a forward kernel on a GPU: one struct, copied into the launch. The host fills it from
// AttentionArguments. Pointers are device memory. Strides count elements.
#pragma once

#include "portable/divisor.hpp"
#include "portable/element.hpp"
#include "portable/integers.hpp"

namespace tessella::portable {

// (batch, row, head, head_dim), head_dim contiguous. Packed tensors have batch stride 0.
struct OperandParams {
  void* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
};

// (batch, head, query, key); stride 0 on broadcast axes. The key axis counts slots of the sequence, padding included.
struct ScoreOperandParams {
  const void* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t q_stride;
  int64_t kv_stride;
};

// Values of one batch, row or head. Null data: absent.
struct TableParams {
  const void* data;
  int64_t batch_stride;
  int64_t stride;
};

// The caller's arrays for `score_mod` and `mask_mod`.
inline constexpr int32_t kMaxArrays = 8;
struct ArrayParams {
  const void* data;
  int64_t count;
};

// cap tanh(score / cap) for a score that is a product s of q and k times a scale. Small scores may use an odd
// polynomial of three terms instead (device/score/softcap.cuh).
struct SoftcapParams {
  float cap;
  float scale;          // |scale of the call| / cap
  float series[3];      // cap tanh(scale s) in powers s, s^3, s^5
  float end_of_series;  // the largest |s| that it serves; -1: none
};

inline constexpr int32_t kSeenWords = 4;

struct ForwardParams {
  OperandParams q, k, v, out;
  OperandParams lse;                                                                   // f32; data null: not written
  TableParams seqlens_q, seqlens_kv, leftpad_kv, cu_seqlens_q, cu_seqlens_kv, prefix;  // i32
  TableParams alibi_slopes, sink;                                                      // f32
  TableParams document_q, document_kv;                                                 // i32
  ScoreOperandParams bias, dense_mask, block_map, draft_mask;
  ArrayParams arrays[kMaxArrays];
  const int64_t* seed_data;  // null: `seed` counts
  const int64_t* offset_data;
  // Classes of tiles (TileClass), (batch, head, q tile, kv tile); stride 0 on an axis if all batches or heads use the
  // same.
  uint8_t* tile_map;
  int64_t tile_map_batch_stride;
  int64_t tile_map_head_stride;
  // For each tile of the tile map: kSeenWords words, a bit for each key, set if some query of the tile sees the key,
  // band included. Bits past the tile's keys are 1. Null: not wanted.
  uint32_t* seen_keys;
  // The map of the mask (cuda/kernels/classify/params.cuh), by batches and heads as tile_map; null: none.
  uint32_t* mask_map;
  int64_t window_left, window_right, chunk;
  uint64_t seed, offset;
  int32_t has_tables;  // any of seqlens_q to prefix, or cache_batch_idx
  int32_t batch, head_dim_qk, head_dim_v;
  Divisor heads_q;
  Divisor group;                // heads of q for each head of k and v
  int32_t seqlen_q, seqlen_kv;  // rows of a sequence; packed: the longest
  int32_t total_q, total_kv;    // packed: rows of the tensors; else those of a sequence
  // Schedule (device/tile/work_tile.cuh): tiles of queries a sequence, tiles of v's columns; heads of a section, and
  // its tiles in all; the first head of the last section, a multiple of heads_per_section, and its heads.
  int32_t tiles_q, slices_v;
  Divisor heads_per_section, tiles_per_section;
  int32_t first_of_last_section;
  Divisor heads_of_last_section;
  int32_t kv_tiles;                   // of a row of tile_map
  Divisor block_map_q, block_map_kv;  // queries and keys of one entry of block_map
  int32_t keep_first;
  float scale;  // on q . k
  SoftcapParams softcap;
  float keep_scale;  // portable/dropout.hpp
  uint32_t dropout_threshold;
  Element out_element;       // f32 or that of q
  int32_t out_vector_store;  // rows of out start at multiples of 16 bytes and hold whole 16-byte chunks
  int32_t causal_top_left;
  // For paged k and v, whose batch strides step over pages: (batch, page) i32.
  TableParams page_table;
  Divisor page_size;
  int32_t num_pages;
  // For k and v in a cache of slots, whose batch strides step over slots: (batch) i32.
  int32_t slots;
  TableParams cache_batch_idx;
};

}  // namespace tessella::portable
