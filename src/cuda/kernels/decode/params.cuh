// Decode: what its kernels are compiled for, their layout of shared memory, and their arguments.
//
// The query rows of a block are the queries of one sequence and one KV head: row = query * group + head of the group.
// In a step each warp takes 16 keys; with v_in_k several warps take the same 16 keys, each with its own rows. In a
// round each block of a cluster takes one step.
#pragma once

#include "portable/inputs_params.hpp"
#include "portable/masks_params.hpp"
#include "portable/output_params.hpp"
#include "portable/score_config.hpp"
#include "portable/scores_params.hpp"
#include "portable/sequences_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kDecodeTile = 16;          // keys of a warp's step: the depth of a matrix instruction
inline constexpr int32_t kLongestDecode = 1 << 29;  // keys or query rows: sums of three fit in 32 bits
inline constexpr int32_t kMostClusterBlocks = 8;    // that every GPU with clusters runs

struct DecodeConfig {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: rows are padded to it with zeros
  int32_t head_dim_v = 0;
  int32_t rows = 0;       // query rows of a block: 8, 16, 32 or 64
  int32_t num_warps = 0;  // each scores keys of its own, but with v_in_k
  // With few rows each warp sums all columns over its own keys and waits for no other warp. Otherwise each warp sums
  // its own columns over the keys of all warps.
  bool warps_alone = false;
  int32_t depth = 0;  // steps whose keys and values are on their way
  // Values are the first columns of the keys (MLA) and are read from the keys' shared memory.
  bool v_in_k = false;
  // Exponents subtract one number for all rows (FlashDecoding++, arXiv 2311.01282, section 3), with a guard.
  bool unified_max = false;
  bool operator==(const DecodeConfig&) const = default;
};

// k and v of 8 or 4 bits, which have scales.
constexpr bool is_quantized(const DecodeConfig& c) { return bits_of(c.score.elements.kv) < 16; }

// Warps that have the same maxima and divide the columns of o.
constexpr int32_t group_warps(const DecodeConfig& c) { return c.warps_alone ? 1 : c.num_warps; }
constexpr int32_t groups(const DecodeConfig& c) { return c.num_warps / group_warps(c); }
// Tiles of 16 keys in a step. With v_in_k rows are so long that a tile for each warp would leave no memory for a second
// step.
constexpr int32_t key_tiles(const DecodeConfig& c) { return c.v_in_k ? 2 : c.num_warps; }
constexpr int32_t step_keys(const DecodeConfig& c) { return key_tiles(c) * kDecodeTile; }
// Bytes of `columns` columns of k or v.
constexpr int32_t cache_bytes(const DecodeConfig& c, int32_t columns) {
  return columns * bits_of(c.score.elements.kv) / 8;
}
// Bytes of k_scale and v_scale, f32, for the keys of a warp's step.
inline constexpr int32_t kStepScaleBytes = 2 * kDecodeTile * 4;

// Shared memory of a block, in bytes from its start.
struct DecodeLayout {
  int32_t keys;       // [depth][tile] of k, or with v_in_k [depth + 1][tile] of both
  int32_t values;     // [depth + 1][tile] of v; in the end rows of out of each group of warps, f32
  int32_t queries;    // one tile of q
  int32_t probs;      // [2, or 1 with v_in_k][tile][rows / 8] right operands of the second product
  int32_t scales;     // [depth + 1][tile][k, v] of 16 keys
  int32_t row_infos;  // [rows] of RowInfo (kernels/decode/decode.cuh)
  int32_t drafts;     // [query] what it sees of the drafts, a bit each
  int32_t tops;       // [tile][rows] largest scores, then sums
  int32_t maxima;     // [group of warps][rows]
  // [block of the cluster][its slice] of 16 bytes; then [block][rows] maximum and sum. None with v_in_k.
  int32_t received;
  int32_t barrier;  // and the word by which a block learns that it is the last
  int32_t bytes;
};
inline constexpr int32_t kRowInfoBytes = 16;
inline constexpr int32_t kMostDrafts = 64;  // queries and their keys, with draft_mask
// Floats from one row of out to the next in shared memory, so that the rows of a warp's store hit different banks.
constexpr int32_t out_pitch(const DecodeConfig& c) { return c.head_dim_v + 4; }
constexpr int32_t probs_bytes(const DecodeConfig& c) { return c.score.elements.p == Element::f32 ? 512 : 256; }

constexpr DecodeLayout layout(const DecodeConfig& c) {
  const int32_t key_bytes = (c.depth + (c.v_in_k ? 1 : 0)) * step_keys(c) * cache_bytes(c, c.head_dim_qk);
  const int32_t value_bytes = c.v_in_k ? key_bytes : (c.depth + 1) * step_keys(c) * cache_bytes(c, c.head_dim_v);
  const int32_t out_bytes = groups(c) * c.rows * out_pitch(c) * 4;
  DecodeLayout at{};
  at.values = c.v_in_k ? at.keys : at.keys + key_bytes;
  at.queries = at.values + ((value_bytes > out_bytes ? value_bytes : out_bytes) + 1023) / 1024 * 1024;
  at.probs = at.queries + c.rows * c.head_dim_qk * size_bytes(c.score.elements.q);
  at.scales = at.probs + (c.v_in_k ? 1 : 2) * key_tiles(c) * c.rows / 8 * probs_bytes(c);
  at.row_infos = at.scales + (is_quantized(c) ? (c.depth + 1) * key_tiles(c) * kStepScaleBytes : 0);
  at.drafts = at.row_infos + c.rows * kRowInfoBytes;
  at.tops = at.drafts + kMostDrafts * 8;
  at.maxima = at.tops + key_tiles(c) * c.rows * 4;
  at.received = at.maxima + (groups(c) * c.rows * 4 + 15) / 16 * 16;
  const int32_t slice_bytes = (c.rows * c.head_dim_v / 4 + kMostClusterBlocks) * 16;
  at.barrier = at.received + (c.v_in_k ? 0 : slice_bytes + kMostClusterBlocks * c.rows * 8);
  at.bytes = at.barrier + 16;
  return at;
}
constexpr int32_t shared_bytes(const DecodeConfig& c) { return layout(c).bytes; }

// The i32 words of a schedule: rounds of a piece (there is one piece for each cluster); the first round of every
// sequence on the line of all rounds, and the line's end; the sequence in which each piece begins.
// (kernels/decode/decode_work.cuh)
inline constexpr int32_t kScheduleStarts = 1;
constexpr int64_t schedule_words(int64_t batch, int64_t pieces) { return kScheduleStarts + batch + 1 + pieces; }
// The cost of starting a unit, in rounds.
inline constexpr int32_t kUnitOverhead = 1;

inline constexpr int32_t kScheduleThreads = 256;

// f32 (slot or page, block of rows, head); stride 0 on broadcast axes. Null data: 1.
struct CacheScaleParams {
  const void* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
};

struct DecodeParams {
  InputsParams inputs;  // strides of k and v in 4 bits count bytes
  SequencesParams sequences;
  ScoresParams scores;
  MasksParams masks;
  OutputParams output;
  int32_t* schedule;    // null: every unit (sequence, KV head, tile of rows) has `unit_clusters` clusters
  float* partial;       // results of clusters that work on the same unit: [slot][row][column of v], then
  float* partial_sums;  // [slot][row] maximum and sum
  uint32_t* arrived;    // [unit][block of the cluster]; zero before and after
  Divisor heads_kv, row_tiles, unit_clusters;
  Divisor slice;            // pieces of 4 columns of out that a block of a cluster merges
  int32_t rows;             // query rows of a tile, at most the config's
  int32_t cluster;          // blocks
  int32_t pieces;           // of a schedule; 0: none
  int32_t split_rounds;     // keys are cut at multiples of so many rounds; 0: each unit's evenly into `unit_clusters`
  int32_t log2_round_keys;  // cluster x keys of a step
  int32_t num_sequences;    // batch, plus one for rows of packed tensors after the last sequence
  int32_t cache_is_settled;
  CacheScaleParams k_scale, v_scale;
  Divisor scale_block;  // rows of one entry of these
  // v_scale where all keys of a sequence and KV head have one: it multiplies out, and v_scale has no data.
  CacheScaleParams out_factor;
};

}  // namespace tessella::portable
