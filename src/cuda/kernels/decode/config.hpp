// The compiled configuration of a decode call and how its keys are split over blocks: pure functions of its sizes,
// types and features and of the GPU.
#pragma once

#include <algorithm>

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/decode/params.cuh"
#include "operations/attention/shape.hpp"

namespace tessella::cuda {

inline constexpr int64_t kMostDecodeRows = 64;  // of a block

// Query rows of a sequence and KV head: queries times heads of the group.
inline int64_t decode_rows(const core::AttentionShape& p) { return p.seqlen_q * p.group(); }

// Longer rows must hold the values in the keys (MLA), so that both are read once.
inline constexpr int64_t kMostDecodeColumns = 256;
inline bool has_long_rows(const core::AttentionShape& p) {
  return std::max(p.head_dim_qk, p.head_dim_v) > kMostDecodeColumns;
}

portable::DecodeConfig decode_config(const core::AttentionShape& shape, const DeviceInfo& device, bool unified_max);
Program decode_program(const portable::DecodeConfig& config);
Program decode_schedule_program();

struct Splits {
  int64_t units = 0;          // sequences x KV heads x tiles of rows
  int64_t row_tiles = 1;      // of a sequence and KV head
  int32_t rows = 0;           // of a tile
  int32_t cluster = 1;        // blocks that take one cluster's rounds in turn
  int64_t unit_clusters = 1;  // clusters of a unit, without a schedule
  int64_t pieces = 0;         // clusters of a schedule; 0: there is none
  int32_t split_rounds = 0;   // keys are cut at multiples of so many rounds; 0: evenly

  int64_t clusters() const { return pieces > 0 ? pieces : units * unit_clusters; }
  // Slots in memory for the results of clusters that work on the same unit; 0 if every unit has one cluster.
  int64_t slots() const { return pieces > 0 ? 2 * pieces : unit_clusters > 1 ? units * unit_clusters : 0; }
};
Splits decode_splits(const core::AttentionShape& bounds, const portable::DecodeConfig& config,
                     const DeviceInfo& device);

}  // namespace tessella::cuda
