// Stands in for src/cuda/driver/tensor_map.cpp: a map that the emulator's copy engine reads.
#include "cuda/driver/tensor_map.hpp"

#include <cstring>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/device/ptx/tensor_copy.cuh"

namespace tessella::cuda {

portable::TensorMap tensor_map(const core::Operand& t, const TensorSizes& sizes, Box box) {
  const int64_t row_bytes = box.columns * core::size_bytes(t.dtype);
  if (row_bytes != 128 && row_bytes != 64) {
    throw core::Error(core::ErrorCode::internal,
                      core::message("a box of ", box.columns, " columns of ", core::name(t.dtype)));
  }
  const emulator::Tensor tensor = {t.data,
                                   core::size_bytes(t.dtype),
                                   {sizes.head_dim, sizes.rows, sizes.heads, sizes.batch},
                                   t.row_stride,
                                   t.head_stride,
                                   t.batch_stride,
                                   box.rows,
                                   row_bytes};
  portable::TensorMap map{};
  std::memcpy(&map, &tensor, sizeof tensor);
  return map;
}

}  // namespace tessella::cuda
