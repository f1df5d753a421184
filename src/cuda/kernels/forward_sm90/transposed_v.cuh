// v of 8 bits, transposed: for each head and each of its columns the keys of a sequence, as quantize writes them; or of
// all packed sequences, each from a multiple of kKeyTile on (kernels/forward_f8_sm90/transpose_v.cuh).
//
// Inside 16 keys, place 4 t + b holds key 8 (b / 2) + 2 t + b % 2. The accumulators of a product of q and k, which hold
// keys 2 t and 2 t + 1 of each 8 in lane t of four, are then the left operand of the product with v as they are.
#pragma once

#include "cuda/device/tile/sequence.cuh"
#include "portable/transpose_v.hpp"

namespace tessella::device {

// Where a sequence's key 0 is in its row of keys. Tiles of packed sequences never overlap if their offsets ascend.
__device__ __forceinline__ int32_t transposed_at(const portable::SequencesParams& p, int32_t batch_idx,
                                                 const Sequence& sequence) {
  constexpr int32_t kKeyTile = portable::kKeyTile;
  return p.cu_seqlens_kv.data == nullptr ? 0 : (sequence.row_kv / kKeyTile + batch_idx) * kKeyTile;
}

}  // namespace tessella::device
