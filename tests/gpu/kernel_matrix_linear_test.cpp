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

DeviceInfo hopper() {
  DeviceInfo device = typical_device(90);
  device.num_sms = 132;
  return device;
}

core::LinearShape layer() {
  core::LinearShape shape{.in_features = 4096};
  shape.w_shape = shape.out_shape = shape.x_shape = {DType::bf16, 16};
  return shape;
}

// Without spills or waits.
void expect_lean_kernel(const Recipe& recipe) {
  ASSERT_EQ(recipe.ineligible, "");
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const Step& step = recipe.steps.front();
  const auto cubin = store.get(step.program, {.arch = 90, .arch_specific = true});
  const Resources& takes = cubin->resources;
  const std::string said = recipe.description + ": " + std::to_string(takes.registers) + " registers";
  std::cout << said << ", " << static_cast<int>(cubin->milliseconds) << " ms" << std::endl;
  EXPECT_EQ(takes.stack_bytes + takes.spill_store_bytes + takes.spill_load_bytes, 0) << said << "\n" << cubin->log;
  EXPECT_EQ(cubin->log.find("C75"), std::string::npos) << said << "\n" << cubin->log;
  EXPECT_LE(takes.registers * static_cast<int>(step.threads) * step.blocks_per_sm, 65536) << said;
  EXPECT_LE(step.shared_bytes, portable::shared_bytes_of(step.blocks_per_sm)) << said;
}

// Every way to share the work, which sizes of w decide, with the fewest and the most rows; all rows with --full.
TEST(KernelMatrixLinearSm90, CompilesWithoutSpillsOrWaits) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  const DeviceInfo device = hopper();
  constexpr int64_t kPlain[] = {2048, 4096, 8192, 10240, 12288, 16384, 24576},
                    kGated[] = {2048, 4096, 6144, 8192, 10240, 11008};
  core::LinearShape shape = layer();
  for (const bool is_gated : {false, true}) {
    shape.activation = is_gated ? core::Activation::swiglu : core::Activation::none;
    for (const int64_t out_features : is_gated ? std::span<const int64_t>(kGated) : std::span<const int64_t>(kPlain)) {
      shape.out_features = out_features;
      for (const int64_t rows : {1, 16, 32, 64}) {
        shape.rows = rows;
        if (g_full || rows == 1 || rows == 64) expect_lean_kernel(linear_sm90_recipe(shape, device));
      }
    }
    shape.w_shape.dtype = shape.out_shape.dtype = shape.x_shape.dtype = DType::f16;
    expect_lean_kernel(linear_sm90_recipe(shape, device));
    shape.w_shape.dtype = shape.out_shape.dtype = shape.x_shape.dtype = DType::bf16;
  }
}

// The ladder's, in one way of each kind.
TEST(KernelMatrixLinearSm90, Rungs) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  core::LinearShape shape = layer();
  for (const int64_t out_features : {4096, 10240}) {  // clusters, streams
    shape.out_features = out_features;
    shape.rows = 8;
    for (const auto& make_recipe : {linear_one_stage_recipe, linear_two_stages_recipe, linear_padded_recipe}) {
      expect_lean_kernel(make_recipe(shape, hopper()));
    }
  }
}

}  // namespace
}  // namespace tessella::kernel_matrix
