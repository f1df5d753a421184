// Tensor maps, on a driver that only remembers: each element type has its own, and boxes are as they are asked for.
#include "cuda/driver/tensor_map.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "child.hpp"
#include "core/arguments.hpp"
#include "core/error.hpp"
#include "fake_driver.hpp"

namespace {

using namespace tessella;
using core::DType;

TEST(TensorMaps, HaveTheElementAndTheBox) {
  tests::in_child({}, [] {
    const std::vector<std::pair<DType, cuda::CUtensorMapDataType>> types = {
        {DType::bf16, cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16}, {DType::f16, cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
        {DType::f32, cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT32},   {DType::f8e4m3fn, cuda::CU_TENSOR_MAP_DATA_TYPE_UINT8},
        {DType::f8e5m2, cuda::CU_TENSOR_MAP_DATA_TYPE_UINT8},  {DType::i8, cuda::CU_TENSOR_MAP_DATA_TYPE_UINT8}};
    alignas(16) std::byte memory[16];
    for (const auto& [dtype, type] : types) {
      const auto columns = static_cast<int32_t>(128 / core::size_bytes(dtype));
      fake_driver()->tensor_maps.clear();
      cuda::tensor_map({memory, dtype, 1 << 20, 1 << 10, 1 << 7}, {3, 100, 8, 96}, {columns, 40});
      const FakeDriver::TensorMap& map = fake_driver()->tensor_maps.at(0);
      const auto bytes = static_cast<uint64_t>(core::size_bytes(dtype));
      EXPECT_EQ(map.type, type) << name(dtype);
      EXPECT_EQ(std::vector(map.sizes, map.sizes + 4), (std::vector<uint64_t>{96, 100, 8, 3}));
      EXPECT_EQ(std::vector(map.strides, map.strides + 3),
                (std::vector<uint64_t>{bytes << 10, bytes << 7, bytes << 20}))
          << name(dtype);
      EXPECT_EQ(std::vector(map.box, map.box + 4), (std::vector<uint32_t>{static_cast<uint32_t>(columns), 40, 1, 1}));
    }
    for (const DType dtype : {DType::i4, DType::f64, DType::boolean}) {
      EXPECT_THROW(cuda::tensor_map({memory, dtype, 1 << 20, 1 << 10, 1 << 7}, {3, 100, 8, 96}, {64, 40}), core::Error)
          << name(dtype);
    }
  });
}

}  // namespace
