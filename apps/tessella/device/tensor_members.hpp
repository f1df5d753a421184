// The tensors of a call, for what is done to each of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessella/tessella.h"

namespace tessella::cli {

using TensorMember = const tessella_tensor* tessella_forward_args::*;

inline constexpr TensorMember kTensorMembers[] = {
    &tessella_forward_args::q,
    &tessella_forward_args::k,
    &tessella_forward_args::v,
    &tessella_forward_args::out,
    &tessella_forward_args::lse,
    &tessella_forward_args::seqlens_q,
    &tessella_forward_args::seqlens_kv,
    &tessella_forward_args::cu_seqlens_q,
    &tessella_forward_args::cu_seqlens_kv,
    &tessella_forward_args::leftpad_kv,
    &tessella_forward_args::page_table,
    &tessella_forward_args::bias,
    &tessella_forward_args::alibi_slopes,
    &tessella_forward_args::sink,
    &tessella_forward_args::dense_mask,
    &tessella_forward_args::block_map,
    &tessella_forward_args::document_ids_q,
    &tessella_forward_args::document_ids_kv,
    &tessella_forward_args::prefix_lengths,
    &tessella_forward_args::seed,
    &tessella_forward_args::offset,
};

// Bytes from the first element to the end of the last.
inline size_t extent_bytes(const tessella_tensor& t) {
  int64_t last = 0;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return 0;
    last += (t.shape[axis] - 1) * t.strides[axis];
  }
  const bool is_8 = t.dtype == TESSELLA_F64 || t.dtype == TESSELLA_I64;
  const bool is_4 = t.dtype == TESSELLA_F32 || t.dtype == TESSELLA_I32;
  return static_cast<size_t>(last + 1) * (is_8 ? 8 : is_4 ? 4 : t.dtype == TESSELLA_BOOL ? 1 : 2);
}

}  // namespace tessella::cli
