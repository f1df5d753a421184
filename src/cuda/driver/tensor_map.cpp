#include "cuda/driver/tensor_map.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "cuda/driver/driver.hpp"

namespace tessella::cuda {
namespace {

// The copy engine moves bits: elements of 8 bits are bytes to it.
CUtensorMapDataType data_type(core::DType dtype) {
  using portable::Element;
  switch (core::element(dtype)) {
    case Element::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Element::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Element::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Element::e4m3:
    case Element::e5m2:
    case Element::i8: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case Element::i4: break;
  }
  throw core::Error(core::ErrorCode::internal, "a tensor of i4 has no map");
}

}  // namespace

portable::TensorMap tensor_map(const core::Operand& operand, const TensorSizes& sizes, Box of_copy) {
  const auto at_least_one = [](int64_t size) { return static_cast<uint64_t>(std::max<int64_t>(size, 1)); };
  const auto bytes = [&](int64_t stride) { return static_cast<uint64_t>(stride * core::size_bytes(operand.dtype)); };
  const uint64_t dims[4] = {at_least_one(sizes.head_dim), at_least_one(sizes.rows), at_least_one(sizes.heads),
                            at_least_one(sizes.batch)};
  const uint64_t strides[3] = {bytes(operand.row_stride), bytes(operand.head_stride), bytes(operand.batch_stride)};
  const uint32_t box[4] = {static_cast<uint32_t>(of_copy.columns), static_cast<uint32_t>(of_copy.rows), 1, 1};
  const uint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle =
      of_copy.columns * core::size_bytes(operand.dtype) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  CUtensorMap map;
  check(required_driver().cuTensorMapEncodeTiled(&map, data_type(operand.dtype), 4, operand.data, dims, strides, box,
                                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  portable::TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::copy(std::begin(map.opaque), std::end(map.opaque), std::begin(copy.opaque));
  return copy;
}

}  // namespace tessella::cuda
