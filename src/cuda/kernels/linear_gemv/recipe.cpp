#include "cuda/kernels/linear_gemv/recipe.hpp"

#include "core/message.hpp"
#include "cuda/kernels/linear_gemv/config.hpp"
#include "cuda/launch/linear_arguments.hpp"

namespace tessella::cuda {
namespace {

using portable::LinearGemvConfig;

std::optional<Launch> linear_gemv_launch(const LinearGemvConfig& config, const core::LinearArguments& a) {
  if (a.rows == 0) return std::nullopt;
  const portable::LinearGemvParams params{.out = linear_out(a),
                                          .in = linear_operands(a),
                                          .row_groups = static_cast<int32_t>((a.rows + config.rows - 1) / config.rows)};
  const int64_t w_rows = portable::kLinearGemvWarps * portable::w_rows(config);
  const int64_t blocks = (a.weight_rows() + w_rows - 1) / w_rows * params.row_groups;
  return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
}

// Why other kernels serve such calls better, or "".
std::string leaves(const core::LinearShape& shape) {
  if (shape.dtype() == core::DType::f32) return "";
  if (shape.batch_invariant) return "with batch_invariant one kernel has any number of rows, and this one is for 1";
  // Each further row costs as many multiply-adds again, and the matrix instructions of others have room for 8 rows.
  return shape.rows > 1 ? core::message("leaves ", shape.rows, " rows to matrix instructions, unless named") : "";
}

}  // namespace

Recipe linear_gemv_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  const core::LinearShape& shape = core::linear(bounds);
  const LinearGemvConfig config = linear_gemv_config(shape);
  Recipe recipe{.ineligible = takes_all_sms(shape.num_sms, device), .leaves = leaves(shape)};
  recipe.steps.push_back(
      {.program = linear_gemv_program(config),
       .threads = portable::kLinearGemvWarps * 32,
       .blocks_per_sm = portable::blocks_per_sm(config),
       .is_dependent = device.arch >= 90,
       .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency&, const core::Workspace&) {
         return linear_gemv_launch(config, core::linear(call));
       }});
  recipe.description = core::message(portable::w_rows(config), " rows of w and ", config.rows, " of x a warp, ",
                                     config.vectors ? "16-byte" : "scalar", " loads");
  return recipe;
}

}  // namespace tessella::cuda
