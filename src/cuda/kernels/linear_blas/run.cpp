#include <algorithm>
#include <cstdint>

#include "core/message.hpp"
#include "core/plan.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/linear_blas/config.hpp"
#include "cuda/kernels/linear_blas/cublas.hpp"
#include "cuda/kernels/linear_blas/recipe.hpp"
#include "cuda/launch/run.hpp"
#include "operations/linear/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::LinearArguments;

// The call's rows [row, row + rows).
LinearArguments band_of(const LinearArguments& a, int64_t row, int64_t rows) {
  LinearArguments band = a;
  band.rows = rows;
  band.x.data = a.x.row(0, row, 0);
  band.out.data = a.out.row(0, row, 0);
  if (a.residual.data != nullptr) band.residual.data = a.residual.row(0, row, 0);
  return band;
}

CublasProduct product_of(const LinearArguments& a, const core::LinearShape& bounds, const core::Workspace& workspace) {
  const auto behind_sums =
      reinterpret_cast<uintptr_t>(workspace.scratch) + static_cast<uintptr_t>(linear_blas_sum_bytes(bounds));
  const uintptr_t aligned = (behind_sums + kCublasAlignment - 1) / kCublasAlignment * kCublasAlignment;
  const core::Operand sums{
      .data = static_cast<std::byte*>(workspace.scratch), .dtype = core::DType::f32, .row_stride = a.weight_rows()};
  return {.x = a.x,
          .w = a.w,
          .to = is_plain_product(bounds) ? a.out : sums,
          .rows = a.rows,
          .w_rows = a.weight_rows(),
          .in_features = a.in_features,
          .num_sms = std::min(a.num_sms, device_info(a.device.id).num_sms),
          .workspace = reinterpret_cast<void*>(aligned),
          .workspace_bytes = static_cast<size_t>(cublas_workspace_bytes(device_info(a.device.id)))};
}

void run_with_cublas(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace,
                     void* stream) {
  const LinearArguments& a = core::linear(arguments);
  const core::LinearShape& bounds = core::linear(plan.shape);
  const CurrentDevice current(a.device.id);
  const int64_t most = linear_blas_band(bounds);
  for (int64_t row = 0; row < a.rows; row += most) {
    const LinearArguments band = band_of(a, row, std::min(most, a.rows - row));
    multiply(product_of(band, bounds, workspace), stream);
    run(&band, plan, workspace, stream);
  }
}

std::shared_ptr<const void> prepare_with_cublas(const core::Plan& plan) {
  const CurrentDevice current(core::device(plan.shape).id);
  prepare_cublas();
  return prepare(plan);
}

std::string describe_with_cublas(const core::Plan& plan) {
  return core::message("cuBLAS ", cublas_version_and_path(), ", ", describe(plan));
}

}  // namespace

core::Kernel with_cublas(core::Kernel kernel) {
  kernel.missing = cublas_problem;
  kernel.describe = describe_with_cublas;
  kernel.prepare = prepare_with_cublas;
  kernel.run = run_with_cublas;
  return kernel;
}

}  // namespace tessella::cuda
