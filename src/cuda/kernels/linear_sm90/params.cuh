// The configuration and parameters of linear_sm90, and its layout of shared memory.
#pragma once

#include "portable/divisor.hpp"
#include "portable/hopper.hpp"
#include "portable/linear_params.hpp"

namespace tessella::portable {

struct LinearSm90Config {
  Element element = Element::bf16;  // of x and w
  bool swiglu = false;
  int32_t rows = 0;        // of x in a tile: 8, 16, 32 or 64
  int32_t row_blocks = 0;  // of 64 rows of w in a tile; with swiglu 2, that of gates and what they multiply
  int32_t panels = 0;      // of 128 bytes of columns in a stage
  int32_t stages = 0;
  int32_t cluster = 0;  // blocks that share the columns of a tile: 1, 2 or 4
  bool streams = false;
  int32_t blocks_per_sm = 0;
  bool operator==(const LinearSm90Config&) const = default;
};

inline constexpr int32_t kLinearBlockRows = 64;  // of w, which the matrix unit multiplies at once
inline constexpr int32_t kLinearWarps = 4;       // that multiply, 16 rows of a block each
inline constexpr int32_t kLinearSm90Threads = 32 * (kLinearWarps + 1);
constexpr int32_t step_columns(const LinearSm90Config& c) { return c.panels * box_columns(c.element); }
// Columns of out in a tile.
constexpr int32_t tile_columns(const LinearSm90Config& c) { return (c.swiglu ? 1 : c.row_blocks) * kLinearBlockRows; }

constexpr int32_t panel_bytes(int32_t rows) { return rows * 128; }
constexpr int32_t weight_bytes(const LinearSm90Config& c) {
  return c.panels * c.row_blocks * panel_bytes(kLinearBlockRows);
}
// Of a stage: [panel][block] of w, then [panel] of x.
constexpr int32_t stage_bytes(const LinearSm90Config& c) { return weight_bytes(c) + c.panels * panel_bytes(c.rows); }
// Of the sums of a warp: [block][8 rows of x] of four floats a lane.
constexpr int32_t warp_sum_bytes(const LinearSm90Config& c) { return c.row_blocks * c.rows / 8 * 32 * 16; }
// Of the sums that the other blocks of a cluster send for the warps' rows that a block owns: [warp][block].
constexpr int32_t mail_bytes(const LinearSm90Config& c) {
  return kLinearWarps / c.cluster * (c.cluster - 1) * warp_sum_bytes(c);
}
// Stages, then what is sent, then barriers: of the stages, and one that counts what is sent.
constexpr int32_t barriers_at(const LinearSm90Config& c) { return c.stages * stage_bytes(c) + mail_bytes(c); }
constexpr int32_t shared_bytes(const LinearSm90Config& c) { return barriers_at(c) + c.stages * kBarrierBytes + 8; }
// What a block may have where a multiprocessor runs so many.
constexpr int32_t shared_bytes_of(int32_t blocks_per_sm) {
  constexpr int32_t kBlockReserve = 1024;
  return (kHopperSharedBytes + kBlockReserve) / blocks_per_sm - kBlockReserve;
}

// Sums of the pieces of tiles, which units leave each other: [unit][at its begin, at its end][warp] of
// warp_sum_bytes(), and counters [unit][warp].
constexpr int64_t partial_bytes(const LinearSm90Config& c, int64_t units) {
  return units * 2 * kLinearWarps * warp_sum_bytes(c);
}
constexpr int64_t counter_bytes(int64_t units) { return units * kLinearWarps * 4; }

struct LinearSm90Params {
  TensorMap w, x;  // (column, row): boxes of 128 bytes, of 64 rows of w and of a tile's rows of x
  LinearOut out;
  // All steps of all tiles form one line, which units of `unit_steps` share; of a cluster's tile each block takes a
  // part.
  Divisor tile_steps, unit_steps;
  Divisor row_tiles;  // those of x; they have the same rows of w, one after the other
  int32_t line_steps;
  int32_t weights_are_ready;
  float* partial;     // with streams, of partial_bytes()
  uint32_t* arrived;  // likewise, of counter_bytes(); zero before and after
};

}  // namespace tessella::portable
