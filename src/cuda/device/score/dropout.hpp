// Dropout of probabilities (portable/dropout.hpp). The accumulators' places are those of ptx/mma.hpp.
#pragma once

#include "cuda/device/schedule/schedule.hpp"
#include "portable/dropout.hpp"
#include "portable/forward_params.hpp"

namespace tessella::device {

// The call's, whose seed and offset may lie in device memory.
__device__ __forceinline__ portable::Dropout dropout_of(const portable::ForwardParams& p) {
  return {p.seed_data != nullptr ? static_cast<uint64_t>(*p.seed_data) : p.seed,
          p.offset_data != nullptr ? static_cast<uint64_t>(*p.offset_data) : p.offset, p.dropout_threshold};
}

// The index by which dropout knows a head.
__device__ __forceinline__ uint64_t dropout_head(const portable::ForwardParams& p, const WorkTile& work) {
  return static_cast<uint64_t>(work.batch_idx) * p.heads_q.value + work.head_idx;
}

// Zeroes what dropout takes from 16 rows and 16 keys: block (block_q, block_kv) of the head's, whose keys are in
// s[j] and s[j + 1].
template <int Blocks>
__device__ __forceinline__ void drop(float (&s)[Blocks][4], int j, const portable::Dropout& dropout, uint64_t head_idx,
                                     int32_t block_q, int32_t block_kv, int lane) {
  const portable::Random4 random = dropout.bits(head_idx, block_q, block_kv, lane);
#pragma unroll
  for (int word = 0; word < 4; ++word) {  // row word % 2, block word / 2
    float* pair = &s[j + word / 2][word % 2 * 2];
    if ((random.word[word] & 0xFFFF) < dropout.threshold) pair[0] = 0;
    if (random.word[word] >> 16 < dropout.threshold) pair[1] = 0;
  }
}

}  // namespace tessella::device
