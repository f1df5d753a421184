#include "cuda/kernels/linear_blas/recipe.hpp"

#include "core/message.hpp"
#include "cuda/kernels/linear_blas/config.hpp"
#include "cuda/launch/linear_arguments.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr int64_t kFewRows = 64;  // a tile of the kernels behind this one

std::optional<Launch> linear_blas_launch(const core::LinearArguments& a, const core::Workspace& workspace) {
  if (a.rows == 0) return std::nullopt;
  const portable::LinearBlasParams params{.out = linear_out(a),
                                          .sums = static_cast<const float*>(workspace.scratch),
                                          .out_features = portable::divisor(static_cast<int32_t>(a.out_features)),
                                          .is_swiglu = a.activation == core::Activation::swiglu ? 1 : 0};
  constexpr int64_t kOfBlock = portable::kLinearBlasThreads * portable::kLinearBlasElements;
  return Launch{{static_cast<unsigned>((a.rows * a.out_features + kOfBlock - 1) / kOfBlock), 1, 1}, Parameters(params)};
}

Step finishing_step(const core::LinearShape& shape) {
  return {.program = linear_blas_program(linear_blas_config(shape)),
          .threads = portable::kLinearBlasThreads,
          .launch = [](const core::Shape&, const core::Arguments& call, const Concurrency&,
                       const core::Workspace& workspace) { return linear_blas_launch(core::linear(call), workspace); }};
}

}  // namespace

int64_t cublas_workspace_bytes(const DeviceInfo& device) {
  return int64_t{device.arch >= 90 ? 32 : 4} << 20;  // as its manual recommends
}

Recipe linear_blas_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  const core::LinearShape& shape = core::linear(bounds);
  if (shape.batch_invariant) {
    return {.ineligible = "does not know the order of cuBLAS's sums, and batch_invariant asks"};
  }
  Recipe recipe;
  if (!is_plain_product(shape)) recipe.ineligible = takes_all_sms(shape.num_sms, device);
  if (shape.rows <= kFewRows) {
    recipe.leaves = message("leaves up to ", kFewRows, " rows of x to kernels made for few, unless named");
  }
  recipe.workspace.scratch_bytes = linear_blas_sum_bytes(shape) + cublas_workspace_bytes(device) + kCublasAlignment;
  recipe.description = "straight into out";
  if (!is_plain_product(shape)) {
    recipe.steps.push_back(finishing_step(shape));
    recipe.description = message("sums in fp32 of ", linear_blas_band(shape), " rows of x at a time");
  }
  return recipe;
}

}  // namespace tessella::cuda
