#include "cuda/kernels/forward_sm80/recipe.hpp"

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/kernels/classify/classify.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::message;
using portable::ForwardSm80Config;

std::string description(const core::AttentionShape& p, const ForwardSm80Config& c,
                        const std::optional<ForwardSm80Config>& longer) {
  std::string string =
      message("tiles ", c.tile_q, " x ", c.tile_kv,
              longer ? message(" (", longer->tile_kv, " if score_mod leaves the registers)") : "", ", ", c.num_warps,
              c.num_warps == 1 ? " warp" : " warps", ", head dims as compiled ", c.head_dim_qk, " and ", c.head_dim_v);
  if (const int32_t slices = slices_v(p, c); slices > 1) string += message(" x ", slices, " slices");
  return string +
         message(", ", c.vector_loads ? "16-byte" : "scalar", " loads, ", shared_bytes(c), " bytes of shared memory");
}

portable::TileMapParams tile_map_in(const core::Workspace& workspace, const TileMap& map) {
  return tile_map_params(map, workspace.scratch, nullptr);
}

Step forward_step(const ForwardSm80Config& config, const std::string& user) {
  return {.program = forward_sm80_program(config, user),
          .threads = static_cast<unsigned>(config.num_warps) * 32,
          .shared_bytes = shared_bytes(config),
          .blocks_per_sm = config.blocks_per_sm,
          .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                             const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            const TileMap map = tile_map(arguments, config);
            if (!has_rows(arguments, map)) return std::nullopt;
            const portable::ForwardParams params =
                forward_params(arguments, config, map, tile_map_in(workspace, map), at_once);
            const auto blocks = static_cast<unsigned>(forward_blocks(arguments, map));
            return Launch{{blocks, static_cast<unsigned>(params.tiling.slices_v), 1}, Parameters(params)};
          }};
}

}  // namespace

Recipe forward_sm80_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const core::AttentionShape& bounds = core::attention(shape);
  const auto config = forward_sm80_config(bounds, device);
  if (std::string lacking = lacks(bounds, shared_bytes(config), device); !lacking.empty())
    return {.ineligible = lacking};
  if (std::string reason = too_large_map(bounds); !reason.empty()) return {.ineligible = reason};
  if (std::string reason = too_large(bounds, config); !reason.empty()) return {.ineligible = reason};
  const std::string user = user_source(bounds.score_mod, bounds.mask_mod);
  const auto longer = for_small_source(config, device.arch);
  Recipe recipe{.workspace = {.scratch_bytes = largest_tile_map(bounds, config).bytes()},
                .description = description(bounds, config, longer)};
  add_mask_passes(recipe, bounds, config, user,
                  [](const AttentionArguments&, const TileMap& map, const core::Workspace& workspace) {
                    return tile_map_in(workspace, map);
                  });
  Step step = forward_step(config, user);
  if (longer) {
    auto shorter = std::make_shared<const Step>(std::move(step));
    step = forward_step(*longer, user);
    step.if_spilled = std::move(shorter);
  }
  recipe.steps.push_back(std::move(step));
  return recipe;
}

core::Cost forward_sm80_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& arguments = core::attention(call);
  return forward_cost(arguments, forward_sm80_config(arguments, device));
}

}  // namespace tessella::cuda
