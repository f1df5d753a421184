// The tensors of a call, for what is done to each of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessella/tensor.hpp"

namespace tessella::cli {

using TensorMember = const tessella_tensor* tessella_forward_args::*;

inline constexpr TensorMember kTensorMembers[] = {
    &tessella_forward_args::q,
    &tessella_forward_args::k,
    &tessella_forward_args::v,
    &tessella_forward_args::out,
    &tessella_forward_args::lse,
    &tessella_forward_args::q_scale,
    &tessella_forward_args::k_scale,
    &tessella_forward_args::v_scale,
    &tessella_forward_args::out_scale,
    &tessella_forward_args::seqlens_q,
    &tessella_forward_args::seqlens_kv,
    &tessella_forward_args::cu_seqlens_q,
    &tessella_forward_args::cu_seqlens_kv,
    &tessella_forward_args::leftpad_kv,
    &tessella_forward_args::page_table,
    &tessella_forward_args::cache_batch_idx,
    &tessella_forward_args::bias,
    &tessella_forward_args::alibi_slopes,
    &tessella_forward_args::sink,
    &tessella_forward_args::dense_mask,
    &tessella_forward_args::block_map,
    &tessella_forward_args::document_ids_q,
    &tessella_forward_args::document_ids_kv,
    &tessella_forward_args::prefix_lengths,
    &tessella_forward_args::draft_mask,
    &tessella_forward_args::schedule,
    &tessella_forward_args::seed,
    &tessella_forward_args::offset,
};

inline constexpr const tessella_tensor* tessella_backward_args::*kGradientMembers[] = {
    &tessella_backward_args::d_out,  &tessella_backward_args::d_lse,
    &tessella_backward_args::dq,     &tessella_backward_args::dk,
    &tessella_backward_args::dv,     &tessella_backward_args::d_bias,
    &tessella_backward_args::d_sink, &tessella_backward_args::d_alibi_slopes,
};

// Bytes from the first element to the end of the last.
inline size_t extent_bytes(const tessella_tensor& t) {
  int64_t last = 0;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return 0;
    last += (t.shape[axis] - 1) * t.strides[axis];
  }
  return static_cast<size_t>((last + 1) * size_bits(static_cast<DType>(t.dtype)) + 7) / 8;
}

}  // namespace tessella::cli
