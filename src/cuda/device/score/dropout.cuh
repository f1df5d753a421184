// Dropout of probabilities (portable/dropout.hpp). The layout of accumulators is that of ptx/mma.cuh.
#pragma once

#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/work_tile.cuh"
#include "portable/dropout.hpp"
#include "portable/scores_params.hpp"
#include "portable/sequences_params.hpp"

namespace tessella::device {

// The call's dropout; its seed and offset may be in device memory.
__device__ __forceinline__ portable::Dropout dropout_of(const portable::ScoresParams& p) {
  return {p.seed_data != nullptr ? static_cast<uint64_t>(*p.seed_data) : p.seed,
          p.offset_data != nullptr ? static_cast<uint64_t>(*p.offset_data) : p.offset, p.dropout_threshold};
}

// The index by which dropout knows a head.
__device__ __forceinline__ uint64_t dropout_head(const portable::SequencesParams& p, const WorkTile& work) {
  return static_cast<uint64_t>(work.batch_idx) * p.heads_q.value + work.head_idx;
}

// Zeroes the probabilities that dropout drops in 16 rows and 16 keys: block (block_q, block_kv) of the head, whose keys
// are in s[j] and s[j + 1].
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

// Dropout's bits for 16 keys (rows) and 16 queries (columns, 8 in each of two blocks of accumulators). All lanes of the
// warp call it.
class DropoutBits {
 public:
  DropoutBits() = default;
  // Lanes 4 g + t and 4 (g ^ 1) + t need the bits of the same two Philox lanes, those of queries 2 t and 2 t + 1. Each
  // draws one lane's bits and they exchange them.
  __device__ __forceinline__ DropoutBits(const portable::Dropout& dropout, uint64_t head_idx, int32_t block_q,
                                         int32_t block_kv, int lane) {
    const int key = lane / 4, is_odd = key % 2;
    const portable::Random4 random = dropout.bits(head_idx, block_q, block_kv, (lane % 4 * 2 + is_odd) * 4 + key / 2);
    uint32_t drawn = 0;  // bit w: of word w's even key, 4 + w: of its odd key
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      if ((random.word[word] & 0xFFFF) >= dropout.threshold) drawn |= 1u << word;
      if (random.word[word] >> 16 >= dropout.threshold) drawn |= 16u << word;
    }
    const uint32_t got = __shfl_xor_sync(kAllLanes, drawn, 4);
    const uint32_t mine = drawn >> is_odd * 4 & 15, other = got >> is_odd * 4 & 15;
    bits_ = is_odd ? other | mine << 4 : mine | other << 4;  // of the even query, then of the odd one
  }
  // True if accumulator i of block j keeps its probability.
  __device__ bool has(int j, int i) const { return (bits_ >> (i % 2 * 4 + i / 2 * 2 + j) & 1) != 0; }

 private:
  uint32_t bits_ = ~0u;
};

}  // namespace tessella::device
