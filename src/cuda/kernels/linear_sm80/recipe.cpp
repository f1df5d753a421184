#include "cuda/kernels/linear_sm80/recipe.hpp"

#include "core/message.hpp"
#include "cuda/kernels/linear_sm80/config.hpp"
#include "cuda/launch/linear_arguments.hpp"

namespace tessella::cuda {
namespace {

using portable::LinearSm80Config;

std::optional<Launch> linear_sm80_launch(const LinearSm80Config& config, const core::LinearArguments& a) {
  if (a.rows == 0) return std::nullopt;
  const int64_t rows = 8 * config.row_blocks;
  const int64_t w_rows = 16 * config.w_blocks;
  const portable::LinearSm80Params params{
      .out = linear_out(a), .in = linear_operands(a), .row_tiles = static_cast<int32_t>((a.rows + rows - 1) / rows)};
  const int64_t blocks = (a.weight_rows() + w_rows - 1) / w_rows * params.row_tiles;
  return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
}

}  // namespace

Recipe linear_sm80_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  const LinearSm80Config config = linear_sm80_config(core::linear(bounds), device);
  Recipe recipe{.ineligible = takes_all_sms(core::linear(bounds).num_sms, device)};
  recipe.steps.push_back(
      {.program = linear_sm80_program(config),
       .threads = portable::kLinearSm80Warps * 32,
       .shared_bytes = portable::shared_bytes(config),
       .blocks_per_sm = portable::blocks_per_sm(config),
       .is_dependent = device.arch >= 90,
       .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency&, const core::Workspace&) {
         return linear_sm80_launch(config, core::linear(call));
       }});
  recipe.description = core::message(16 * config.w_blocks, " rows of w and ", 8 * config.row_blocks, " of x a block, ",
                                     config.vectors ? "16-byte" : "scalar", " loads");
  return recipe;
}

}  // namespace tessella::cuda
