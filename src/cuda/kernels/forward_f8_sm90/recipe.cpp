#include "cuda/kernels/forward_f8_sm90/recipe.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/tensor_map.hpp"
#include "cuda/kernels/classify/classify.hpp"
#include "cuda/kernels/forward_f8_sm90/config.hpp"
#include "cuda/kernels/forward_sm90/hopper_forward.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::Feature;
using core::message;
using core::Name;
using portable::ForwardSm90Config;
using portable::ForwardSm90Params;
using portable::kKeyTile;

// quantize and the step here make the same tensor.
static_assert(kKeyTile == core::kTransposedTile);
static_assert([] {
  for (int32_t place = 0; place < 16; ++place) {
    if (portable::key_place(portable::key_at(place)) != place) return false;
  }
  return true;
}());

bool is_transposed(const AttentionShape& p) { return p.features.has(Feature::transposed_v); }

int64_t key_tiles(const AttentionShape& p) { return (p.seqlen_kv + kKeyTile - 1) / kKeyTile; }
int64_t transpose_blocks(const AttentionShape& p) { return key_tiles(p) * p.heads_kv * p.batch; }

// Axes of v as it is transposed (kernels/forward_sm90/transposed_v.cuh).
int64_t transposed_batch(const AttentionShape& p) { return p.features.has(Feature::packed_kv) ? 1 : p.batch; }
int64_t transposed_keys(const AttentionShape& p) {
  return (p.features.has(Feature::packed_kv) ? p.total_kv / kKeyTile + p.batch : key_tiles(p)) * kKeyTile;
}

// Scratch: what a tile map takes, then v, unless the caller's is transposed.
struct Scratch {
  int64_t v, bytes;

  Scratch(const AttentionShape& p, const TileMap& map) {
    v = (map.seen_bytes() + map.bytes() + 127) / 128 * 128;
    bytes = is_transposed(p) ? v : v + transposed_batch(p) * p.heads_kv * p.head_dim_v * transposed_keys(p);
  }
};

core::WorkspaceSize workspace_of(const AttentionShape& bounds, const ForwardSm90Config& config) {
  return {.state_bytes = sizeof(uint32_t), .scratch_bytes = Scratch(bounds, largest_tile_map(bounds, config)).bytes};
}

std::string ineligible(const AttentionShape& p, const ForwardSm90Config& config, const DeviceInfo& device) {
  if (std::string reason = unreadable_by_copy_engine(p); !reason.empty()) return reason;
  if (p.features.has(Feature::bias) && p.bias_dtype != core::DType::f32) {
    return message("takes a bias of f32; this one is ", core::name(p.bias_dtype));
  }
  if (config.head_dim_v > 128 && p.features.has_any(Feature::bias | Feature::dropout)) {
    return message("a bias or dropout takes registers that head_dim_v ", p.head_dim_v, " leaves none of, at most 128");
  }
  for (const Name name : {Name::out_scale, Name::amax}) {
    if (p.operands[name].dtype != core::DType::none) return message("takes no ", core::name(name));
  }
  constexpr int64_t kMostKeys = int64_t{1} << 31;
  if (transposed_keys(p) >= kMostKeys) {
    return message("takes fewer than ", kMostKeys, " keys of all packed sequences; these have ", transposed_keys(p));
  }
  if (is_transposed(p) && p.features.has(Feature::leftpad_kv)) {
    return "takes no transposed v beside leftpad_kv: its first key lies within a tile";
  }
  if (!is_transposed(p) && transpose_blocks(p) > kMaxBlocks) {
    return message("batch * heads_kv * seqlen_kv makes ", transpose_blocks(p), " tiles of v, at most ", kMaxBlocks);
  }
  const bool passes_masks = config.score.mask == portable::MaskLevel::bits;
  if ((passes_masks || !is_transposed(p)) && p.num_sms > 0 && p.num_sms < device.num_sms) {
    return message(passes_masks ? "the pass over a mask's tiles" : "the step that transposes v",
                   " leaves no multiprocessor free, and num_sms is ", p.num_sms, " of ", device.num_sms);
  }
  if (std::string reason = too_large_map(p); !reason.empty()) return reason;
  return too_large(p, config);
}

std::string description(const ForwardSm90Config& c, bool transposes) {
  const portable::ForwardSm90Layout layout = portable::forward_sm90_layout(c);
  return message("tiles ", c.tile_q, " x ", c.tile_kv, ", head dims as compiled ", c.head_dim_qk, " and ", c.head_dim_v,
                 ", ", c.scales == portable::KeyScales::key ? "a factor a key" : "a factor a tile of keys", ", ",
                 layout.q_slots, " slots of q, ", layout.k_stages, " stages of k and ", layout.v_stages, " of v, ",
                 layout.bytes, " bytes of shared memory", transposes ? "; v is transposed before" : "");
}

ForwardSm90Params params_of(const AttentionArguments& p, const ForwardSm90Config& config, const TileMap& map,
                            const core::Workspace& workspace, const Concurrency& at_once) {
  ForwardSm90Params params = forward_sm90_params(p, config, map, workspace.state, workspace.scratch, at_once);
  params.q_scale = operand(p.tensors[Name::q_scale]);
  params.k_scale = operand(p.tensors[Name::k_scale]);
  params.v_scale = operand(p.tensors[Name::v_scale]);
  params.scale_block = portable::divisor(static_cast<int32_t>(std::min<int64_t>(p.scale_block, kMaxBlocks)));
  return params;
}

// (batch or 1, head_dim_v, heads_kv, keys), as the caller has given it or in scratch.
core::Operand transposed_v(const AttentionArguments& p, const TileMap& map, const core::Workspace& workspace) {
  if (is_transposed(p)) return p.v();
  const int64_t keys = transposed_keys(p);
  return {.data = static_cast<std::byte*>(workspace.scratch) + Scratch(p, map).v,
          .dtype = p.v().dtype,
          .batch_stride = p.features.has(Feature::packed_kv) ? 0 : p.heads_kv * p.head_dim_v * keys,
          .row_stride = keys,
          .head_stride = p.head_dim_v * keys};
}

ForwardSm90Params params_with_maps(const AttentionArguments& p, const ForwardSm90Config& config, const TileMap& map,
                                   const core::Workspace& workspace, const Concurrency& at_once) {
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  ForwardSm90Params params = params_of(p, config, map, workspace, at_once);
  const auto box = [&](int32_t rows) { return Box{portable::box_columns(config.score.elements.q), rows}; };
  params.q = tensor_map(p.q(), {batch_q, rows_q, p.heads_q, p.head_dim_qk}, box(portable::kWarpgroupRows));
  params.k = tensor_map(p.k(), {batch_kv, rows_kv, p.heads_kv, p.head_dim_qk}, box(params.box_kv));
  params.v =
      tensor_map(transposed_v(p, map, workspace), {transposed_batch(p), p.head_dim_v, p.heads_kv, transposed_keys(p)},
                 {config.tile_kv, config.head_dim_v});
  return params;
}

Step transpose_step(const ForwardSm90Config& config) {
  const portable::TransposeVConfig of_v{.head_dim_v = config.head_dim_v, .paged = config.paged};
  return {.program = transpose_v_program(of_v),
          .threads = portable::kTransposeThreads,
          .shared_bytes = kKeyTile * (config.head_dim_v + 16),
          .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency&,
                             const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& p = core::attention(call);
            const TileMap map = tile_map(p, config);
            if (!has_rows(p, map) || transpose_blocks(p) == 0) return std::nullopt;
            const core::Operand into = transposed_v(p, map, workspace);
            const portable::TransposeVParams params{.sequences = sequences_params(p),
                                                    .v = operand(p.v()),
                                                    .head_dim_v = narrow(p.head_dim_v),
                                                    .to = reinterpret_cast<uint8_t*>(into.data),
                                                    .keys = into.row_stride,
                                                    .batch_stride = into.batch_stride,
                                                    .key_tiles = portable::divisor(static_cast<int32_t>(key_tiles(p))),
                                                    .heads_kv = portable::divisor(static_cast<int32_t>(p.heads_kv))};
            return Launch{{static_cast<unsigned>(transpose_blocks(p)), 1, 1}, Parameters(params)};
          }};
}

}  // namespace

Recipe forward_f8_sm90_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AttentionShape& bounds = core::attention(shape);
  const auto config = forward_f8_sm90_config(bounds);
  if (std::string reason = ineligible(bounds, config, device); !reason.empty()) return {.ineligible = reason};
  const std::string user = user_source(bounds.score_mod, bounds.mask_mod);
  Recipe recipe{.workspace = workspace_of(bounds, config), .description = description(config, !is_transposed(bounds))};
  add_hopper_mask_passes(recipe, bounds, config, user);
  if (!is_transposed(bounds)) recipe.steps.push_back(transpose_step(config));
  recipe.steps.push_back(hopper_forward_step(
      forward_f8_sm90_program(config, user), config,
      [config](const AttentionArguments& arguments, const TileMap& map, const core::Workspace& workspace,
               const Concurrency& at_once) { return params_with_maps(arguments, config, map, workspace, at_once); }));
  return recipe;
}

core::Cost forward_f8_sm90_cost(const core::Arguments& call, const DeviceInfo&) {
  const AttentionArguments& arguments = core::attention(call);
  const auto config = forward_f8_sm90_config(arguments);
  core::Cost cost = forward_cost(arguments, config);
  cost.extra_bytes = static_cast<double>(workspace_of(arguments, config).scratch_bytes);
  return cost;
}

}  // namespace tessella::cuda
