#include "cuda/kernels/forward_sm90/recipe.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/tensor_map.hpp"
#include "cuda/kernels/classify/classify.hpp"
#include "cuda/kernels/forward_sm90/config.hpp"
#include "cuda/kernels/forward_sm90/hopper_forward.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::message;
using portable::ForwardSm90Config;
using portable::MaskLevel;

core::WorkspaceSize workspace_of(const core::AttentionShape& bounds, const ForwardSm90Config& config) {
  const TileMap map = largest_tile_map(bounds, config);
  return {.state_bytes = sizeof(uint32_t), .scratch_bytes = map.seen_bytes() + map.bytes()};
}

std::string ineligible(const core::AttentionShape& p, const ForwardSm90Config& config, const DeviceInfo& device) {
  if (std::string reason = unreadable_by_copy_engine(p); !reason.empty()) return reason;
  if (config.score.mask == MaskLevel::bits && p.num_sms > 0 && p.num_sms < device.num_sms) {
    return message("the pass over a mask's tiles leaves no multiprocessor free, and num_sms is ", p.num_sms, " of ",
                   device.num_sms);
  }
  if (std::string reason = too_large_map(p); !reason.empty()) return reason;
  return too_large(p, config);
}

std::string description(const ForwardSm90Config& c) {
  const portable::ForwardSm90Layout layout = portable::forward_sm90_layout(c);
  return message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.tile_q / portable::kWarpgroupRows,
                 " warpgroups that multiply, head dims as "
                 "compiled ",
                 c.head_dim_qk, " and ", c.head_dim_v, ", ", layout.q_slots, " slots of q, ", layout.k_stages,
                 " stages of k and ", layout.v_stages, " of v, ", layout.bytes, " bytes of shared memory");
}

portable::ForwardSm90Params params_with_maps(const AttentionArguments& p, const ForwardSm90Config& config,
                                             const TileMap& map, const core::Workspace& workspace,
                                             const Concurrency& at_once) {
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  portable::ForwardSm90Params params = forward_sm90_params(p, config, map, workspace.state, workspace.scratch, at_once);
  const auto box = [&](int32_t rows) { return Box{portable::box_columns(config.score.elements.q), rows}; };
  params.q = tensor_map(p.q(), {batch_q, rows_q, p.heads_q, p.head_dim_qk}, box(portable::kWarpgroupRows));
  params.k = tensor_map(p.k(), {batch_kv, rows_kv, p.heads_kv, p.head_dim_qk}, box(params.box_kv));
  params.v = tensor_map(p.v(), {batch_kv, rows_kv, p.heads_kv, p.head_dim_v}, box(params.box_kv));
  if (params.forward.output.out_vector_store != 0 && p.out().dtype == p.dtype()) {
    params.out = tensor_map(p.out(), {batch_q, rows_q, p.heads_q, p.head_dim_v}, box(portable::kWarpRows));
  }
  return params;
}

}  // namespace

Recipe forward_sm90_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const core::AttentionShape& bounds = core::attention(shape);
  const auto config = forward_sm90_config(bounds);
  if (std::string reason = ineligible(bounds, config, device); !reason.empty()) return {.ineligible = reason};
  const std::string user = user_source(bounds.score_mod, bounds.mask_mod);
  Recipe recipe{.workspace = workspace_of(bounds, config), .description = description(config)};
  add_hopper_mask_passes(recipe, bounds, config, user);
  recipe.steps.push_back(hopper_forward_step(
      forward_sm90_program(config, user), config,
      [config](const AttentionArguments& arguments, const TileMap& map, const core::Workspace& workspace,
               const Concurrency& at_once) { return params_with_maps(arguments, config, map, workspace, at_once); }));
  return recipe;
}

core::Cost forward_sm90_cost(const core::Arguments& call, const DeviceInfo&) {
  const AttentionArguments& arguments = core::attention(call);
  const auto config = forward_sm90_config(arguments);
  core::Cost cost = forward_cost(arguments, config);
  cost.extra_bytes = static_cast<double>(workspace_of(arguments, config).scratch_bytes);
  return cost;
}

}  // namespace tessella::cuda
