// Tensor maps: how Hopper's copy engine reads a tensor.
#pragma once

#include "core/operand.hpp"
#include "portable/hopper.hpp"

namespace tessella::cuda {

// Sizes of a tensor (batch, row, head, head_dim) as a map counts them. Packed tensors have one batch.
struct TensorSizes {
  int64_t batch, rows, heads, head_dim;
};

// What a copy moves: columns of 128 or 64 bytes, and rows, of one head.
struct Box {
  int32_t columns, rows;
};

// A map of a tensor for such boxes, swizzled as device/tile/tile.cuh says. Elements are whole bytes; addresses and
// strides must be multiples of 16 bytes, strides below 2^40. Error(device) if the driver reports one.
portable::TensorMap tensor_map(const core::Operand& operand, const TensorSizes& sizes, Box of_copy);

}  // namespace tessella::cuda
