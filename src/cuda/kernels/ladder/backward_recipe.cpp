#include <utility>

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/kernels/backward_sm80/config.hpp"
#include "cuda/kernels/backward_sm80/steps.hpp"
#include "cuda/kernels/ladder/params.cuh"
#include "cuda/kernels/ladder/recipe.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::message;
using core::Name;
using portable::BackwardSm80Config;

constexpr double kMaxBytes = 0x1p48;

// The configuration of backward_sm80 with one query tile at a time. It has no sums of dQ that the first step would have
// to make zero, as it does for those in any order.
BackwardSm80Config standard_config(const AttentionShape& p, const DeviceInfo& device) {
  BackwardSm80Config c = backward_sm80_config(p, device);
  c.stages = 1;
  c.in_order = true;
  return c;
}

// The matrices lie where backward_sm80 has its sums.
portable::LadderBackwardParams standard_params(const AttentionArguments& p, const BackwardSm80Config& c,
                                               const core::Workspace& memory, const Concurrency& at_once) {
  portable::LadderBackwardParams params{backward_params(p, c, memory, at_once), nullptr, nullptr};
  auto* matrices = reinterpret_cast<char*>(params.backward.dq_sums);
  params.probs = matrices;
  params.d_products = matrices + static_cast<int64_t>(standard_backward_bytes(p, c)) / 2;
  return params;
}

double all_bytes(const AttentionShape& p, const BackwardSm80Config& c) {
  return static_cast<double>(backward_bytes(p, c, false)) + standard_backward_bytes(p, c);
}

Step step_of(const char* kernel, const BackwardSm80Config& c, const std::string& user, BackwardBlocks blocks) {
  return backward_step(
      backward_program("ladder/standard_backward.cuh", kernel, c, user), c, c.num_warps * 32, shared_bytes(c), blocks,
      [](const AttentionArguments& p, const BackwardSm80Config& config, const core::Workspace& memory,
         const Concurrency& at_once) { return Parameters(standard_params(p, config, memory, at_once)); });
}

int64_t key_tiles(const AttentionShape& p, const BackwardSm80Config& c) { return ceil_div(p.seqlen_kv, c.tile_kv); }

}  // namespace

Recipe standard_backward_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AttentionShape& bounds = core::attention(shape);
  const BackwardSm80Config c = standard_config(bounds, device);
  if (std::string reason = backward_ineligible(bounds, c, device); !reason.empty()) return {.ineligible = reason};
  if (bounds.batch * bounds.heads_q * key_tiles(bounds, c) > kMaxBlocks || all_bytes(bounds, c) > kMaxBytes) {
    return {.ineligible = "is there to be compared, and the call is too large for it"};
  }
  const std::string user = user_source_with_gradient(bounds.score_mod, bounds.mask_mod, bounds.score_mod_gradient);
  Recipe recipe{.workspace = {.scratch_bytes = static_cast<int64_t>(all_bytes(bounds, c))},
                .description = message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.num_warps,
                                       c.num_warps == 1 ? " warp" : " warps")};
  add_steps_before(recipe, bounds, c, user);
  recipe.steps.push_back(
      step_of("standard_d_scores", c, user, [](const AttentionArguments& p, const BackwardSm80Config& config) {
        return p.wants_scores() ? p.batch * p.heads_q * key_tiles(p, config) : 0;
      }));
  recipe.steps.push_back(
      step_of("standard_dk_dv", c, user, [](const AttentionArguments& p, const BackwardSm80Config& config) {
        return p.wants(Name::dk) || p.wants(Name::dv) ? p.batch * p.heads_kv * key_tiles(p, config) : 0;
      }));
  recipe.steps.push_back(
      step_of("standard_dq", c, user, [](const AttentionArguments& p, const BackwardSm80Config& config) {
        return p.wants(Name::dq) ? backward_row_blocks(p, config) : 0;
      }));
  for (Step& step : steps_behind(bounds, c, user)) recipe.steps.push_back(std::move(step));
  return recipe;
}

core::Cost standard_backward_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& arguments = core::attention(call);
  const BackwardSm80Config c = standard_config(arguments, device);
  return standard_backward_cost(arguments, c, all_bytes(arguments, c));
}

}  // namespace tessella::cuda
