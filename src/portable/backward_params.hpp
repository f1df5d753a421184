// The configuration and parameters of the GPU's backward kernels: the call's arguments, gradients, and the memory that
// the steps pass data through.
#pragma once

#include "portable/arrays_params.hpp"
#include "portable/inputs_params.hpp"
#include "portable/masks_params.hpp"
#include "portable/output_params.hpp"
#include "portable/score_config.hpp"
#include "portable/scores_params.hpp"
#include "portable/sequences_params.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::portable {

struct BackwardSm80Config {
  ScoreConfig score;
  int32_t head_dim_qk = 0;  // as compiled: rows are padded to it with zeros
  int32_t head_dim_v = 0;
  int32_t tile_q = 0;
  int32_t tile_kv = 0;
  int32_t num_warps = 0;
  int32_t stages = 1;        // tiles of q and d_out in shared memory
  bool vector_loads = true;  // rows of q, k, v and d_out start at multiples of 16 bytes and hold whole 16-byte chunks
  bool in_order = true;      // key tiles add to dQ in their order
  int32_t slope_tile_q = 0;  // queries of each sum of ALiBi's slopes; 0: a sum is of a key tile
  bool operator==(const BackwardSm80Config&) const = default;
};

// The data of a query that later steps read. Idle rows, which belong to no query or see no key, have no keys. They are
// 0, 0, 0, 0, but that a sink leaves a query its LSE and -d_lse.
struct BackwardRow {
  float lse;
  float delta;         // d_out . out - d_lse
  int32_t begin, end;  // keys that the band leaves it, beside those of keep_first
};

// How it lies in memory: a lane has two neighbouring queries of a tile of scores, and loads LSE, delta or keys of both
// at once.
struct alignas(16) BackwardRowPair {
  float lse[2], delta[2];
  struct Keys {
    int32_t begin, end;
  } keys[2];
};
static_assert(sizeof(BackwardRowPair) == 2 * sizeof(BackwardRow));

// Bounds over the rows of a tile. `begin` and `largest_end` count only rows that see a key.
struct alignas(16) QueryTile {
  int32_t smallest_begin, smallest_end, largest_begin, largest_end;
};

// Shared memory: tiles of k and v | stages of q, d_out and the tile's rows | P and dX, transposed | words of the block.
struct BackwardLayout {
  int32_t v_at, stages_at, stage_bytes, d_out_at, rows_at, probs_at, d_products_at, words_at, bytes;
};
inline constexpr int32_t kBackwardWords = 128;

constexpr BackwardLayout layout(const BackwardSm80Config& c) {
  const int32_t size = size_bytes(c.score.elements.q);
  BackwardLayout l{};
  l.v_at = c.tile_kv * c.head_dim_qk * size;
  l.stages_at = l.v_at + c.tile_kv * c.head_dim_v * size;
  l.d_out_at = c.tile_q * c.head_dim_qk * size;  // from the stage's begin, as is rows_at
  l.rows_at = l.d_out_at + c.tile_q * c.head_dim_v * size;
  l.stage_bytes = l.rows_at + c.tile_q * static_cast<int32_t>(sizeof(BackwardRow));
  l.stage_bytes = (l.stage_bytes + 127) / 128 * 128;
  l.probs_at = l.stages_at + c.stages * l.stage_bytes;
  l.d_products_at = l.probs_at + c.tile_q * c.tile_kv * size;
  l.words_at = l.d_products_at + c.tile_q * c.tile_kv * size;
  l.bytes = l.words_at + kBackwardWords * 4;
  return l;
}
constexpr int32_t shared_bytes(const BackwardSm80Config& c) { return layout(c).bytes; }

// A gradient of q, k or v. Null data: not wanted.
struct GradientParams {
  OperandParams tensor;
  int32_t is_f32;       // else in the type of q
  int32_t accumulates;  // adds to what is there
};

// The gradient of bias: stride 0 on the axes that are summed.
struct ScoreGradientParams {
  void* data;
  int64_t batch_stride, head_stride, q_stride, kv_stride;
  int32_t queries, keys;  // of the last two axes
  int32_t is_f32;
  int32_t accumulates;
};

// The gradient of the sink or of ALiBi's slopes.
struct HeadGradientParams {
  float* data;
  int64_t batch_stride, stride;  // batch_stride 0: summed over batches
  int32_t accumulates;
};

struct BackwardParams {
  InputsParams inputs;
  SequencesParams sequences;
  ScoresParams scores;
  MasksParams masks;
  ArraysParams arrays;
  TileMapParams tile_map;
  OutputParams output;  // of forward
  OperandParams d_out;
  OperandParams d_lse;  // f32; data null: zero
  GradientParams dq, dk, dv;
  ScoreGradientParams d_bias;
  HeadGradientParams d_sink, d_alibi_slopes;
  // Scratch. Query tiles are counted over all heads; within a head sequences follow each other (first_tile()).
  BackwardRowPair* rows;  // [tile][tile_q / 2]
  QueryTile* tiles;       // [tile]
  uint32_t* turns;        // [tile]: the key tile that adds to its dQ next; kHasSums once the sums hold something
  float* dq_sums;         // [tile][accumulator][thread], not yet times scale
  float* slope_sums;      // [batch * heads_q][slope_tiles]
  uint32_t* ticket;       // blocks that have begun
  int32_t tiles_q;        // of the longest sequence
  int32_t tiles_of_head;
  int32_t kv_tiles;  // of the longest sequence, as slope_tiles
  int32_t slope_tiles;
  int32_t section_heads;  // KV heads whose key tiles run side by side
  int32_t heads_kv;
  int32_t rows_are_aligned;  // rows of out and d_out are aligned to 16 bytes and are whole pieces of 16 bytes
};

inline constexpr uint32_t kHasSums = 1u << 31;

// Threads of a block of the steps over rows.
inline constexpr int32_t kBackwardRowThreads = 128;
inline constexpr int32_t kBackwardRowBytes = kBackwardRowThreads * 8;  // of shared memory

}  // namespace tessella::portable
