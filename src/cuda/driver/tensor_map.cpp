#include "cuda/driver/tensor_map.hpp"

#include <algorithm>

#include "cuda/driver/driver.hpp"

namespace tessella::cuda {

portable::TensorMap tensor_map(const core::Operand& operand, const TensorSizes& sizes, int32_t box_rows) {
  const auto at_least_one = [](int64_t size) { return static_cast<uint64_t>(std::max<int64_t>(size, 1)); };
  const auto bytes = [&](int64_t stride) { return static_cast<uint64_t>(stride * core::size_bytes(operand.dtype)); };
  const uint64_t dims[4] = {at_least_one(sizes.head_dim), at_least_one(sizes.rows), at_least_one(sizes.heads),
                            at_least_one(sizes.batch)};
  const uint64_t strides[3] = {bytes(operand.row_stride), bytes(operand.head_stride), bytes(operand.batch_stride)};
  const uint32_t box[4] = {64, static_cast<uint32_t>(box_rows), 1, 1};
  const uint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      operand.dtype == core::DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  check(required_driver().cuTensorMapEncodeTiled(&map, type, 4, operand.data, dims, strides, box, steps,
                                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  portable::TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::copy(std::begin(map.opaque), std::end(map.opaque), std::begin(copy.opaque));
  return copy;
}

}  // namespace tessella::cuda
