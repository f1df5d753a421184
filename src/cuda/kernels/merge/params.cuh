// merge on a GPU: its configuration, and a step's only argument. A step merges what its parameters hold, up to 32
// states; of more, each step but the last leaves a state in scratch, which the next one takes first.
#pragma once

#include "portable/element.hpp"
#include "portable/integers.hpp"

namespace tessella::portable {

inline constexpr int32_t kMergeThreads = 256;
inline constexpr int32_t kMergeBlocksPerSm = 4;  // 32 registers and more a thread, and loads enough in flight
inline constexpr int32_t kMostMergeStates = 32;

struct MergeConfig {
  Element element = Element::bf16;  // of the states
  Element out = Element::bf16;
  bool vectors = false;    // rows are moved in pieces of 16 bytes of a state
  bool continues = false;  // takes the state that the step before left, in fp32
  bool operator==(const MergeConfig&) const = default;
};

// Elements of a row that a thread moves at once.
constexpr int32_t piece(const MergeConfig& c) { return c.vectors ? 16 / size_bytes(c.element) : 1; }

// Strides in elements. lse: null where a result has none.
struct MergeState {
  void* out;
  float* lse;
  int64_t batch_stride, row_stride, head_stride;
  int64_t lse_batch_stride, lse_row_stride, lse_head_stride;
};

struct MergeParams {
  MergeState states[kMostMergeStates];
  MergeState before;  // of the step before
  MergeState result;
  int64_t rows;  // batch * seqlen * heads
  int32_t num_states;
  int32_t seqlen, heads, head_dim;
  int32_t log2_lanes;  // threads that have a row together
};
static_assert(sizeof(MergeParams) <= 4096, "what drivers before CUDA 12.1 take");

}  // namespace tessella::portable
