// The kernel matrix of linear_sm90.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <span>
#include <string>

#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/linear_sm90/config.hpp"
#include "cuda/kernels/linear_sm90/recipe.hpp"
#include "gpu/kernel_matrix.hpp"
#include "operations/linear/shape.hpp"

namespace tessella::kernel_matrix {
namespace {

using namespace cuda;

// Every way to share the work, which sizes of w decide, with the fewest and the most rows; all rows with --full.
TEST(KernelMatrixLinearSm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  DeviceInfo device = typical_device(90);
  device.num_sms = 132;
  constexpr int64_t kPlain[] = {2048, 4096, 8192, 10240, 12288, 16384, 24576},
                    kGated[] = {2048, 4096, 6144, 8192, 10240, 11008};
  core::LinearShape shape{.in_features = 4096};
  shape.w_shape = shape.out_shape = shape.x_shape = {DType::bf16, 16};
  const auto expect_lean_kernel = [&] {
    const Recipe recipe = linear_sm90_recipe(shape, device);
    ASSERT_EQ(recipe.ineligible, "");
    const Step& step = recipe.steps.front();
    const auto cubin = store.get(step.program, {.arch = 90, .arch_specific = true});
    const Resources& takes = cubin->resources;
    const std::string said = recipe.description + ": " + std::to_string(takes.registers) + " registers";
    std::cout << said << ", " << static_cast<int>(cubin->milliseconds) << " ms" << std::endl;
    EXPECT_EQ(takes.stack_bytes + takes.spill_store_bytes + takes.spill_load_bytes, 0) << said << "\n" << cubin->log;
    EXPECT_EQ(cubin->log.find("C75"), std::string::npos) << said << "\n" << cubin->log;
    EXPECT_LE(takes.registers * static_cast<int>(step.threads) * step.blocks_per_sm, 65536) << said;
    EXPECT_LE(step.shared_bytes, portable::shared_bytes_of(step.blocks_per_sm)) << said;
  };
  for (const bool is_gated : {false, true}) {
    shape.activation = is_gated ? core::Activation::swiglu : core::Activation::none;
    for (const int64_t out_features : is_gated ? std::span<const int64_t>(kGated) : std::span<const int64_t>(kPlain)) {
      shape.out_features = out_features;
      for (const int64_t rows : {1, 16, 32, 64}) {
        shape.rows = rows;
        if (g_full || rows == 1 || rows == 64) expect_lean_kernel();
      }
    }
    shape.w_shape.dtype = shape.out_shape.dtype = shape.x_shape.dtype = DType::f16;
    expect_lean_kernel();
    shape.w_shape.dtype = shape.out_shape.dtype = shape.x_shape.dtype = DType::bf16;
  }
}

}  // namespace
}  // namespace tessella::kernel_matrix
