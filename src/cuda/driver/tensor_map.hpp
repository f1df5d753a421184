// Tensor maps: how Hopper's copy engine reads a tensor.
#pragma once

#include "core/arguments.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::cuda {

// Sizes of a tensor (batch, row, head, head_dim) as a map counts them. Packed tensors have one batch.
struct TensorSizes {
  int64_t batch, rows, heads, head_dim;
};

// A map of a 16-bit tensor for boxes of 64 columns and `box_rows` rows of one head, swizzled as device/tile/tile.hpp
// says. Addresses and strides must be multiples of 16 bytes, strides below 2^40. Error(device) if the driver reports
// one.
portable::TensorMap tensor_map(const core::Operand& operand, const TensorSizes& sizes, int32_t box_rows);

}  // namespace tessella::cuda
