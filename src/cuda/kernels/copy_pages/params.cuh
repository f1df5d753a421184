// copy_pages on a GPU: its configuration, and a launch's only argument, which holds so many pools; of more there are
// several launches.
#pragma once

#include "portable/integers.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kCopyPagesThreads = 256;
inline constexpr int32_t kCopyPagesBlocksPerSm = 4;
inline constexpr int32_t kCopyPagesPieces = 4;  // that a thread has in flight
inline constexpr int32_t kMostPools = 60;

struct CopyPagesConfig {
  int32_t piece_bytes = 16;  // that a thread moves at once: 1, 2, 4, 8 or 16
  bool operator==(const CopyPagesConfig&) const = default;
};

// A page: outer * inner runs of `run` pieces. Strides in pieces.
struct PoolParams {
  void* data;
  int64_t page_stride, outer_stride, inner_stride;
  int64_t pieces;  // of a page
  int64_t run;
  int32_t inner;
};

struct CopyPagesParams {
  PoolParams pools[kMostPools];
  TableParams pairs;  // i32
  int64_t num_tasks;  // num_pools * num_pairs * portions
  int32_t num_pools, num_pairs, num_pages;
  int32_t portions;  // blocks' portions of the largest page
};
static_assert(sizeof(CopyPagesParams) <= 4096, "what drivers before CUDA 12.1 take");

}  // namespace tessella::portable
