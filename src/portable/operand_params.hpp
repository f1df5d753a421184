// Tensors and tables as a GPU kernel's parameters name them. Pointers are device memory. Strides count elements.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

// (batch, row, head, head_dim), head_dim contiguous. Packed tensors have batch stride 0.
struct OperandParams {
  void* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
};

// (batch, head, query, key); stride 0 on broadcast axes. The key axis counts slots of the sequence, padding included.
struct ScoreOperandParams {
  const void* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t q_stride;
  int64_t kv_stride;
};

// Values of one batch, row or head. Null data: absent.
struct TableParams {
  const void* data;
  int64_t batch_stride;
  int64_t stride;
};

}  // namespace tessella::portable
