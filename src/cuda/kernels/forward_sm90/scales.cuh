// Factors on rows of q, k and v of 8 bits.
#pragma once

#include "cuda/device/tile/rows.cuh"

namespace tessella::device {

// Of a row of the tensor, in a batch, slot or page of it; scale_block rows have one.
__device__ __forceinline__ float row_scale(const portable::OperandParams& scale, const portable::Divisor& scale_block,
                                           int32_t batch, int32_t row, int32_t head) {
  if (scale.data == nullptr) return 1.0f;
  const int32_t block = scale_block.value == 0 ? 0 : scale_block.quotient(row);
  return static_cast<const float*>(
      scale.data)[batch * scale.batch_stride + block * scale.row_stride + head * scale.head_stride];
}

// Of a row of k or v, which counts as Sequence::row_kv does. batch_kv: from batch_of_keys(). Packed tensors have blocks
// that run over all sequences, or one factor for each of them.
__device__ __forceinline__ float key_scale(const portable::SequencesParams& p, const portable::Divisor& scale_block,
                                           const portable::OperandParams& scale, int32_t batch_idx, int32_t batch_kv,
                                           int32_t head_kv, int32_t row) {
  if (scale.data == nullptr) return 1.0f;
  if (p.page_table.data != nullptr) {
    const PagedRow at = paged_row(p, batch_idx, row);
    return row_scale(scale, scale_block, at.page, at.row, head_kv);
  }
  return row_scale(scale, scale_block, p.cu_seqlens_kv.data != nullptr ? batch_idx : batch_kv, row, head_kv);
}

}  // namespace tessella::device
