// quantize and dequantize on a GPU: their configuration, and the only argument of all of their kernels.
#pragma once

#include "portable/element.hpp"
#include "portable/integers.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::portable {

inline constexpr int32_t kQuantizeThreads = 256;

struct QuantizeConfig {
  Element element = Element::bf16;  // of rows of numbers
  Element quantized = Element::e4m3;
  int32_t columns = 128;  // of a row, rounded up to a power of two: the lanes of a row and what each has follow
  bool vectors = false;   // rows are read and written in pieces
  bool rotates = false;
  bool interleaved = false;    // neighbours turn together
  bool angles_are_f32 = true;  // else of the element
  bool has_mean = false;       // subtracted, or added
  bool hadamard = false;
  bool shifts = false;      // lse_shift is written
  bool own_scales = false;  // of a row, by the lanes that have it, or of a block of rows, by a block of threads
  bool operator==(const QuantizeConfig&) const = default;
};

inline constexpr int32_t kMostQuantizedColumns = 1024;

// Neighbouring columns of a row that a lane has, in registers; the lanes of a row. Of 16 bits 16 columns are two loads
// under way in each lane, which memory needs, and finding a row costs a lane as much as some columns do.
constexpr int32_t lane_columns(const QuantizeConfig& c) { return c.columns <= 512 ? 16 : c.columns / 32; }
constexpr int32_t row_lanes(const QuantizeConfig& c) { return c.columns / lane_columns(c); }
// What registers allow.
constexpr int32_t blocks_per_sm(const QuantizeConfig& c) {
  return c.columns > 512 ? 1 : c.vectors && !c.rotates ? 4 : 2;
}
// Elements of a row that a lane reads at once.
constexpr int32_t row_piece(const QuantizeConfig& c) { return c.vectors ? 16 / size_bytes(c.element) : 1; }

// A tile of a transposed tensor in shared memory: whole rows of at most 32 KB, as columns of so many bytes.
inline constexpr int32_t kTransposedRows = 128;
constexpr int32_t tile_rows(const QuantizeConfig& c) {
  return c.columns <= 256 ? kTransposedRows : 32 * 1024 / c.columns;
}
constexpr int32_t tile_pitch(const QuantizeConfig& c) { return tile_rows(c) + 4; }  // few lanes meet in a bank
constexpr int32_t tile_bytes(const QuantizeConfig& c) { return c.columns * tile_pitch(c); }

struct QuantizeStrides {
  int64_t batch, row, head;  // in elements; of a transposed tensor rows are its columns
};

struct QuantizeParams {
  SequenceTables tables;
  const void* x;
  void* out;
  float* scale;  // null: 1
  float* mean;   // null: none
  const float* k_mean;
  float* lse_shift;
  float* sums;  // of kMeanRows rows each: (chunk, head, column)
  const void* cos;
  const void* sin;
  QuantizeStrides x_strides, out_strides, scale_strides, mean_strides, k_mean_strides, shift_strides;
  int64_t cos_stride, sin_stride;  // from a position to the next
  uint64_t seed;                   // of the signs
  int64_t rows;                    // of the tensors, times heads
  int64_t entries;                 // of the scales that are computed
  Divisor tensor_rows;             // of a batch entry of the tensors
  Divisor scale_block;             // 0: all rows
  int32_t entry_blocks, entry_heads;
  int32_t chunks;  // that a sequence has; packed: that all have at most
  int32_t heads, head_dim;
  int32_t heads_of_mean;   // heads of x for one of k_mean
  int32_t hadamard_block;  // columns
  int32_t rotary_dim;
  float hadamard_factor;
};

}  // namespace tessella::portable
