#include "cuda/kernels/backward_sm90/recipe.hpp"

#include <algorithm>
#include <utility>

#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/tensor_map.hpp"
#include "cuda/kernels/backward_sm80/steps.hpp"
#include "cuda/kernels/backward_sm90/params.cuh"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "cuda/launch/score_config.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::message;
using core::Name;
using portable::BackwardSm80Config;
using portable::BackwardSm90Config;

int32_t padded(int64_t head_dim) { return compiled_head_dim(head_dim, {128, 192, 256}); }

BackwardSm90Config config_of(const AttentionShape& p) {
  const int64_t head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  BackwardSm90Config c{
      .score = score_config(p), .head_dim_qk = padded(p.head_dim_qk), .head_dim_v = padded(p.head_dim_v)};
  if (head_dim <= 64) c.head_dim_qk = c.head_dim_v = 64;
  // Of ALiBi's slopes a head's block keeps a sum: that of dQ.
  c.apart = head_dim > 128 || p.features.has(core::Feature::d_alibi_slopes);
  return c;
}

// The tiles of the steps before and after, which are backward_sm80's.
BackwardSm80Config steps_config(const BackwardSm90Config& c) {
  return {.score = c.score,
          .head_dim_qk = c.head_dim_qk,
          .head_dim_v = c.head_dim_v,
          .tile_q = portable::kBackwardTileQ,
          .tile_kv = portable::backward_tile_kv(c),
          .num_warps = 8,
          .slope_tile_q = c.apart ? portable::kBackwardDqTileQ : 0};
}

std::string ineligible(const AttentionShape& p, const BackwardSm90Config& c, const DeviceInfo& device) {
  constexpr int32_t kAlignment = 16;
  const int32_t alignment = std::min(p.alignment(), p.operands[Name::d_out].alignment);
  if (alignment < kAlignment || p.head_dim_qk % 8 != 0 || p.head_dim_v % 8 != 0) {
    return message("the copy engine reads rows, heads and batches that start at multiples of ", kAlignment,
                   " bytes; q, k, v and d_out are aligned to ", alignment, " bytes, head dims are ", p.head_dim_qk,
                   " and ", p.head_dim_v);
  }
  return backward_ineligible(p, steps_config(c), device);
}

Program program(const char* file, const char* kernel, const BackwardSm90Config& c, const std::string& user) {
  return {.header = message("cuda/kernels/backward_sm90/", file),
          .expression = expression(kernel, c),
          .user_source = user,
          .arch_specific = true};
}

portable::BackwardSm90Params params_of(const AttentionArguments& p, const BackwardSm90Config& c,
                                       const core::Workspace& workspace, const Concurrency& at_once) {
  const int32_t tile_kv = portable::backward_tile_kv(c);
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  // Without queries or keys nothing reads their maps, which want memory all the same.
  const bool has_queries = batch_q * rows_q > 0, has_keys = batch_kv * rows_kv > 0;
  const core::Operand &of_q = p.q(), &of_d_out = p.tensors[Name::d_out];
  const core::Operand &q = has_queries ? of_q : p.k(), &d_out = has_queries ? of_d_out : p.v();
  const core::Operand &k = has_keys ? p.k() : of_q, &v = has_keys ? p.v() : of_d_out;
  const auto box = [&](int32_t rows) { return Box{portable::box_columns(c.score.elements.q), rows}; };
  return {.q = tensor_map(q, {batch_q, rows_q, p.heads_q, p.head_dim_qk}, box(portable::kBackwardTileQ)),
          .k = tensor_map(k, {batch_kv, rows_kv, p.heads_kv, p.head_dim_qk}, box(tile_kv)),
          .v = tensor_map(v, {batch_kv, rows_kv, p.heads_kv, p.head_dim_v}, box(tile_kv)),
          .d_out = tensor_map(d_out, {batch_q, rows_q, p.heads_q, p.head_dim_v}, box(portable::kBackwardTileQ)),
          .backward = backward_params(p, steps_config(c), workspace, at_once)};
}

// A kernel with BackwardSm90Params. blocks: of a call, 0 where it has none of the step.
Step tile_step(const char* file, const char* kernel, const BackwardSm90Config& c, const std::string& user,
               int32_t shared_bytes, int64_t (*blocks)(const AttentionArguments&, const BackwardSm90Config&)) {
  return {.program = program(file, kernel, c, user),
          .threads = portable::kBackwardSm90Threads,
          .shared_bytes = shared_bytes,
          .launch = [c, blocks](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                                const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& p = core::attention(call);
            const int64_t count = blocks(p, c);
            if (count == 0) return std::nullopt;
            return Launch{{static_cast<unsigned>(count), 1, 1}, Parameters(params_of(p, c, workspace, at_once))};
          }};
}
// A block a key tile.
int64_t key_blocks(const AttentionArguments& p, const BackwardSm90Config& c) {
  return p.batch * p.heads_kv * ceil_div(p.seqlen_kv, portable::backward_tile_kv(c));
}

// The kernel of all gradients.
Step main_step(const BackwardSm90Config& c, const std::string& user) {
  Step step = tile_step("backward_sm90.cuh", "backward_sm90", c, user, portable::layout(c).bytes,
                        [](const AttentionArguments& p, const BackwardSm90Config& of) {
                          return p.wants(Name::dq) || p.wants(Name::dk) || p.wants(Name::dv) ? key_blocks(p, of) : 0;
                        });
  step.blocks_wait = true;
  return step;
}
// A block a query tile, behind it.
Step store_dq_step(const BackwardSm90Config& c) {
  BackwardSm90Config of_rows = c;
  of_rows.score = {.elements = c.score.elements, .mask = c.score.mask};
  return backward_step(program("backward_sm90.cuh", "store_dq_sm90", of_rows, user_source()), steps_config(c), 256,
                       portable::kBackwardTileQ * portable::gradient_row_bytes(c.head_dim_qk),
                       [](const AttentionArguments& p, const BackwardSm80Config& steps) {
                         return p.wants(Name::dq) ? backward_row_blocks(p, steps) : 0;
                       });
}

// The two kernels where dQ is apart.
Step dkv_step(const BackwardSm90Config& c, const std::string& user) {
  return tile_step("backward_dkv_sm90.cuh", "backward_dkv_sm90", c, user, portable::layout(c).bytes,
                   [](const AttentionArguments& p, const BackwardSm90Config& of) {
                     return p.wants(Name::dk) || p.wants(Name::dv) ? key_blocks(p, of) : 0;
                   });
}
Step dq_step(const BackwardSm90Config& c, const std::string& user) {
  return tile_step("backward_dq_sm90.cuh", "backward_dq_sm90", c, user, portable::dq_layout(c).bytes,
                   [](const AttentionArguments& p, const BackwardSm90Config&) {
                     return p.wants(Name::dq) || p.d_alibi_slopes.data != nullptr
                                ? p.batch * p.heads_q * ceil_div(p.seqlen_q, portable::kBackwardDqTileQ)
                                : 0;
                   });
}

}  // namespace

Recipe backward_sm90_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AttentionShape& bounds = core::attention(shape);
  const BackwardSm90Config c = config_of(bounds);
  if (std::string reason = ineligible(bounds, c, device); !reason.empty()) return {.ineligible = reason};
  const BackwardSm80Config steps = steps_config(c);
  const std::string user = user_source_with_gradient(bounds.score_mod, bounds.mask_mod, bounds.score_mod_gradient);
  Recipe recipe{.workspace = {.scratch_bytes = backward_bytes(bounds, steps, !c.apart)},
                .description = message("tiles ", portable::kBackwardTileQ, " x ", portable::backward_tile_kv(c),
                                       ", 2 warpgroups that multiply, head dims as compiled ", c.head_dim_qk, " and ",
                                       c.head_dim_v, c.apart ? ", dQ by a kernel of its own, " : ", ",
                                       portable::layout(c).stages, " stages, ",
                                       std::max(portable::layout(c).bytes, c.apart ? portable::dq_layout(c).bytes : 0),
                                       " bytes of shared memory")};
  add_steps_before(recipe, bounds, steps, user);
  const bool wants_dq = bounds.operands[Name::dq].dtype != core::DType::none;
  recipe.steps.push_back(c.apart ? dkv_step(c, user) : main_step(c, user));
  if (c.apart && (wants_dq || bounds.features.has(core::Feature::d_alibi_slopes))) {
    recipe.steps.push_back(dq_step(c, user));
  } else if (!c.apart && wants_dq) {
    recipe.steps.push_back(store_dq_step(c));
  }
  for (Step& step : steps_behind(bounds, steps, user)) recipe.steps.push_back(std::move(step));
  return recipe;
}

core::Cost backward_sm90_cost(const core::Arguments& call, const DeviceInfo&) {
  const AttentionArguments& arguments = core::attention(call);
  const BackwardSm90Config c = config_of(arguments);
  const BackwardSm80Config steps = steps_config(c);
  return backward_cost(arguments, steps, static_cast<double>(backward_bytes(arguments, steps, !c.apart)),
                       c.apart ? portable::kBackwardDqTileQ : 0);
}

}  // namespace tessella::cuda
