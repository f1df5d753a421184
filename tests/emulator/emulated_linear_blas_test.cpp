// cuda.linear_blas's step in the emulator, behind sums of x w^T as cuBLAS would leave them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/linear_call.hpp"
#include "cases/tensor_elements.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/linear_blas/recipe.hpp"
#include "emulated_step.hpp"
#include "operations/linear/linear.hpp"

namespace tessella::tests {
namespace {

constexpr const char* kReference = "reference.linear";  // of the collector

std::vector<float> sums_of(const core::LinearArguments& a, LinearCall& call) {
  std::vector<float> sums(static_cast<size_t>(a.rows * a.weight_rows()));
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t of_w = 0; of_w < a.weight_rows(); ++of_w) {
      double sum = 0;
      for (int64_t k = 0; k < a.in_features; ++k) {
        sum += get(call.x(), row * a.x.row_stride + k) * get(call.w(), of_w * a.w.row_stride + k);
      }
      sums[static_cast<size_t>(row * a.weight_rows() + of_w)] = static_cast<float>(sum);
    }
  }
  return sums;
}

std::string run_linear(LinearCall& call) {
  call.remember();
  const tessella_linear_args args = call.args();
  core::LinearArguments arguments = api::read<core::Linear>(&args, call.options(), "emulated", nullptr);
  arguments.device.type = core::DeviceType::cuda;
  arguments.derive_shape();
  const cuda::DeviceInfo device = cuda::typical_device(90);
  const core::LinearShape& bounds = arguments;
  const cuda::Recipe recipe = cuda::linear_blas_recipe(bounds, device);
  if (recipe.steps.size() != 1) return recipe.description + recipe.ineligible;
  std::vector<float> sums = sums_of(arguments, call);
  try {
    const cuda::Step& step = recipe.steps[0];
    const core::Workspace workspace{.scratch = sums.data()};
    const auto launch = step.launch(bounds, &arguments, cuda::concurrency(step, bounds, device), workspace);
    if (launch) run_step(step, *launch, call.data().seed);
    finish(call);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Bias, SwiGLU and residual, and several blocks.
TEST(EmulatedLinearBlas, RandomCases) {
  int num_run = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    LinearCase c = random_linear(kReference, "f32 bf16 f16", seed, 20);
    c.w_dtype = c.dtype;
    c.batch_invariant = c.plan = false;
    if (!c.swiglu && !c.residual && c.bias_dtype == 0) continue;
    LinearCall call(c);
    ASSERT_EQ(run_linear(call), "") << to_string(c);
    ASSERT_EQ(call.check(), "");
    ++num_run;
  }
  EXPECT_GT(num_run, 70);
}

}  // namespace
}  // namespace tessella::tests
