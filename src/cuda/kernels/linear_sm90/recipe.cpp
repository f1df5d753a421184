#include "cuda/kernels/linear_sm90/recipe.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/driver/tensor_map.hpp"
#include "cuda/kernels/linear_sm90/config.hpp"
#include "cuda/launch/linear_arguments.hpp"

namespace tessella::cuda {
namespace {

using core::LinearArguments;
using core::LinearShape;
using core::message;
using portable::LinearSm90Config;

std::string unreadable(const LinearShape& p) {
  constexpr int32_t kAlignment = 16;
  const int32_t alignment = std::min(p.x_shape.alignment, p.w_shape.alignment);
  if (alignment < kAlignment || p.in_features % (kAlignment / core::size_bytes(p.dtype())) != 0) {
    return message("the copy engine reads rows of whole pieces of ", kAlignment, " bytes that start at multiples of ",
                   kAlignment, "; x and w are aligned to ", alignment, " bytes, in_features is ", p.in_features);
  }
  return "";
}

std::string ineligible(const LinearShape& p, const LinearSm90Config& c, const DeviceInfo& device) {
  if (std::string reason = unreadable(p); !reason.empty()) return reason;
  if (std::string reason = takes_all_sms(p.num_sms, device); !c.streams && !reason.empty()) {
    return "with batch_invariant " + reason;
  }
  // Positions on the line of all steps fit 32 bits.
  constexpr int64_t kLongest = 1 << 30;
  const int64_t tiles = linear_sm90_tiles(p, c), steps = linear_sm90_steps(p, c);
  if (tiles > kLongest / std::max(steps, int64_t{c.cluster})) {
    return message("takes ", tiles, " tiles in ", steps, " steps each, at most ", kLongest, " in all");
  }
  return "";
}

std::string description(const LinearSm90Config& c) {
  return message(
      "tiles of ", c.row_blocks, " x ", portable::kLinearBlockRows, " rows of w and ", c.rows, " of x, ", c.stages,
      c.stages == 1 ? " stage of " : " stages of ", portable::step_columns(c), " columns, ",
      c.streams ? "equal shares of the line of all tiles" : message("columns of a tile shared by ", c.cluster), ", ",
      portable::shared_bytes(c), " bytes of shared memory");
}

Launch launch(const LinearArguments& a, const LinearSm90Config& c, const Concurrency& at_once,
              const core::Workspace& workspace) {
  portable::LinearSm90Params params{};
  const int32_t columns = portable::box_columns(c.element);
  params.w = tensor_map(a.w, {1, a.weight_rows(), 1, a.in_features}, {columns, portable::kLinearBlockRows});
  params.x = tensor_map(a.x, {1, a.rows, 1, a.in_features}, {columns, c.rows});
  params.out = linear_out(a);
  const int64_t steps = linear_sm90_steps(a, c), line = linear_sm90_tiles(a, c) * steps;
  const int64_t unit_steps = c.streams ? (line + at_once.blocks - 1) / at_once.blocks : steps;
  const int64_t units = (line + unit_steps - 1) / unit_steps;
  params.tile_steps = portable::divisor(static_cast<int32_t>(steps));
  params.unit_steps = portable::divisor(static_cast<int32_t>(unit_steps));
  params.row_tiles = portable::divisor(static_cast<int32_t>((a.rows + c.rows - 1) / c.rows));
  params.line_steps = static_cast<int32_t>(line);
  params.weights_are_ready = a.weights_ready ? 1 : 0;
  params.partial = static_cast<float*>(workspace.scratch);
  params.arrived = static_cast<uint32_t*>(workspace.state);
  return {{static_cast<unsigned>(units * c.cluster), 1, 1}, Parameters(params)};
}

Recipe recipe_within(const LinearSm90Limits& limits, const core::Shape& shape, const DeviceInfo& device) {
  const LinearShape& bounds = core::linear(shape);
  const LinearSm90Config config = linear_sm90_config(bounds, device, limits);
  if (std::string reason = ineligible(bounds, config, device); !reason.empty()) return {.ineligible = reason};
  Step step{.program = linear_sm90_program(config),
            .threads = portable::kLinearSm90Threads,
            .cluster = static_cast<unsigned>(config.cluster),
            .shared_bytes = portable::shared_bytes(config),
            .blocks_per_sm = config.blocks_per_sm,
            .is_dependent = true,
            .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                               const core::Workspace& workspace) -> std::optional<Launch> {
              const LinearArguments& a = core::linear(call);
              if (a.rows == 0) return std::nullopt;
              return launch(a, config, at_once, workspace);
            }};
  Recipe recipe{.description = description(config)};
  if (config.streams) {
    const int64_t units = concurrency(step, bounds, device).blocks;
    recipe.workspace = {.state_bytes = portable::counter_bytes(units),
                        .scratch_bytes = portable::partial_bytes(config, units)};
  }
  recipe.steps.push_back(std::move(step));
  return recipe;
}

}  // namespace

Recipe linear_sm90_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  return recipe_within({}, bounds, device);
}
Recipe linear_one_stage_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  return recipe_within({.most_stages = 1}, bounds, device);
}
Recipe linear_two_stages_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  return recipe_within({.most_stages = 2}, bounds, device);
}
Recipe linear_padded_recipe(const core::Shape& bounds, const DeviceInfo& device) {
  return recipe_within({.fewest_rows = 64}, bounds, device);
}

}  // namespace tessella::cuda
