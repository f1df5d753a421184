// A tile of scores under a mask, and what the passes over masks find of its keys.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/kernels/classify/params.cuh"

namespace tessella::device {

// What is known of keys, a bit each. Of no query: nothing is seen, and nothing is hidden.
struct KeyBits {
  uint32_t seen = 0;     // by some query
  uint32_t shown = ~0u;  // hidden by element masks from no query to which the band shows the key

  // Another query: element masks show it the keys of `visible`, the band those of in_band.
  __device__ __forceinline__ void add(uint32_t visible, uint32_t in_band) {
    seen |= visible & in_band;
    shown &= visible | ~in_band;
  }
  __device__ __forceinline__ void add(const KeyBits& other) {
    seen |= other.seen;
    shown &= other.shown;
  }
};

// A tile of rows [first_q, first_q + rows) and keys [first_kv, first_kv + keys). batch_idx and head_idx: of its map.
struct MaskTile {
  BandedSequence<int64_t> s;
  int32_t batch_idx, head_idx, first_q, rows, first_kv, keys;
  bool is_in_band;  // the band shows every key of the tile to every row
};

// Bits of those of the range among the 32 keys from `first` on.
__device__ __forceinline__ uint32_t keys_between(const KeyRange& keys, int32_t first) {
  const int32_t begin = clamp(keys.begin - first, 0, 32), end = clamp(keys.end - first, 0, 32);
  return begin >= end ? 0 : ptx::low_bits(static_cast<uint32_t>(end - begin)) << begin;
}

// Joins what the warps of the block found of word `word`, which lanes with `has` have. All threads call it; lanes below
// kSeenWords have the words.
__device__ __forceinline__ KeyBits add_warps(const KeyBits& found, bool has, uint32_t word) {
  auto* of_warps = reinterpret_cast<KeyBits*>(ptx::dynamic_shared());
  if (has) of_warps[threadIdx.x / 32 * portable::kSeenWords + word] = found;
  __syncthreads();
  KeyBits all;
  for (int other = 0; other < portable::kClassifyWarps; ++other) {
    all.add(of_warps[other * portable::kSeenWords + threadIdx.x % portable::kSeenWords]);
  }
  return all;
}

}  // namespace tessella::device
