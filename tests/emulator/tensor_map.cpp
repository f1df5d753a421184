// Stands in for src/cuda/driver/tensor_map.cpp: a map that the emulator's copy engine reads.
#include "cuda/driver/tensor_map.hpp"

#include <cstring>

#include "cuda/device/ptx/tensor_copy.hpp"

namespace tessella::cuda {

portable::TensorMap tensor_map(const core::Operand& t, const TensorSizes& sizes, int32_t box_rows) {
  const emulator::Tensor tensor = {reinterpret_cast<uint16_t*>(t.data),
                                   {sizes.head_dim, sizes.rows, sizes.heads, sizes.batch},
                                   t.row_stride,
                                   t.head_stride,
                                   t.batch_stride,
                                   box_rows};
  portable::TensorMap map{};
  std::memcpy(&map, &tensor, sizeof tensor);
  return map;
}

}  // namespace tessella::cuda
