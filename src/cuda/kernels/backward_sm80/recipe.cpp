#include "cuda/kernels/backward_sm80/recipe.hpp"

#include <algorithm>
#include <utility>

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/kernels/backward_sm80/config.hpp"
#include "cuda/kernels/backward_sm80/steps.hpp"
#include "cuda/kernels/classify/classify.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "cuda/launch/tile_map.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::Feature;
using core::Gradient;
using core::message;
using core::Name;
using portable::BackwardParams;
using portable::BackwardSm80Config;

// Tiles of a head's queries, those of packed sequences too (device/schedule/query_tiles.cuh).
int64_t tiles_of_head(const AttentionShape& p, const BackwardSm80Config& c) {
  const int64_t rows = p.features.has(Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q;
  return rows / c.tile_q + p.batch + 1;
}

// Sums of ALiBi's slopes for a head.
int64_t slope_tiles(const AttentionShape& p, const BackwardSm80Config& c) {
  return c.slope_tile_q > 0 ? ceil_div(p.seqlen_q, c.slope_tile_q) : ceil_div(p.seqlen_kv, c.tile_kv);
}

// The scratch memory that the steps pass data through: its sections, in order.
struct Scratch {
  int64_t bytes = 0;
  int64_t map, seen, rows, tiles, turns, dq_sums, slope_sums, ticket;  // dq_sums: the last

  Scratch(const AttentionShape& p, const BackwardSm80Config& c, const TileMap& of_masks) {
    const int64_t all_tiles = tiles_of_head(p, c) * p.heads_q;
    const auto take = [this](int64_t count, size_t size) {
      const int64_t at = bytes;
      bytes += ceil_div(count * static_cast<int64_t>(size), 128) * 128;
      return at;
    };
    rows = take(all_tiles * c.tile_q / 2, sizeof(portable::BackwardRowPair));
    tiles = take(all_tiles, sizeof(portable::QueryTile));
    turns = take(all_tiles, sizeof(uint32_t));
    const bool wants_slopes = p.features.has(Feature::d_alibi_slopes);
    slope_sums = take(wants_slopes ? p.batch * p.heads_q * slope_tiles(p, c) : 0, sizeof(float));
    ticket = take(1, sizeof(uint32_t));
    map = take(of_masks.bytes(), 1);
    seen = take(of_masks.seen_bytes(), 1);
    const bool wants_dq = p.operands[Name::dq].dtype != core::DType::none;
    dq_sums = take(wants_dq ? all_tiles * c.tile_q * c.head_dim_qk : 0, sizeof(float));
  }
};

portable::TileMapParams tile_map_params(const TileMap& map, const Scratch& scratch, const core::Workspace& memory) {
  auto* bytes = static_cast<char*>(memory.scratch);
  return tile_map_params(map, bytes + scratch.map, bytes + scratch.seen);
}

portable::GradientParams gradient(const AttentionArguments& p, Name name, Gradient of) {
  const core::Operand& t = p.tensors[name];
  return {operand(t), t.dtype == core::DType::f32 ? 1 : 0, p.accumulates(of) ? 1 : 0};
}

portable::HeadGradientParams head_gradient(const AttentionArguments& p, const core::ScoreGradient& t, Gradient of) {
  return {reinterpret_cast<float*>(t.data), t.batch_stride, t.head_stride, p.accumulates(of) ? 1 : 0};
}

portable::ScoreGradientParams bias_gradient(const AttentionArguments& p) {
  const core::ScoreGradient& t = p.d_bias;
  return {t.data,
          t.batch_stride,
          t.head_stride,
          t.q_stride,
          t.kv_stride,
          narrow(t.queries),
          narrow(t.keys),
          t.dtype == core::DType::f32 ? 1 : 0,
          p.accumulates(Gradient::d_bias) ? 1 : 0};
}

// KV heads whose key tiles run at the same time. At least as many as fill the GPU with one key tile of each head, so
// that blocks that start together seldom wait for each other. More, until q, d_out and dQ's sums fill half of the L2
// cache, because blocks of a head that start at different times wait less. More still where later key tiles meet fewer
// queries and key tiles take turns at dQ: few of a head then run side by side, 16, or 8 under element masks, where all
// may wait for those that most queries see. (Measured on an H200: docs/lab/backward_sm90.md.)
int64_t section_heads(const AttentionShape& p, const BackwardSm80Config& c, int64_t kv_tiles,
                      const Concurrency& at_once) {
  const int64_t heads = std::max<int64_t>(p.batch * p.heads_kv, 1);
  const int64_t row_bytes = (p.head_dim_qk + p.head_dim_v) * core::size_bytes(p.dtype()) + 4 * p.head_dim_qk;
  const int64_t bytes = std::max<int64_t>(p.seqlen_q * p.group() * row_bytes, 1);
  const bool takes_turns = c.in_order && c.slope_tile_q == 0;  // else dQ has a kernel of its own
  const int64_t side_by_side = p.features.has_any(core::kElementMasks | core::Feature::mask_mod) ? 8 : 16;
  const int64_t of_turns = takes_turns && p.rows_grow ? at_once.blocks / side_by_side : 1;
  const int64_t wanted = std::max(
      {ceil_div(at_once.blocks, std::max<int64_t>(kv_tiles, 1)), at_once.l2_bytes / 2 / bytes, of_turns, int64_t{1}});
  return std::min(wanted, heads);
}

}  // namespace

BackwardParams backward_params(const AttentionArguments& p, const BackwardSm80Config& c, const core::Workspace& memory,
                               const Concurrency& at_once) {
  const TileMap map = tile_map(p, c);
  const Scratch scratch(p, c, map);
  const auto at = [&](int64_t bytes) { return static_cast<char*>(memory.scratch) + bytes; };
  BackwardParams params{};
  params.inputs = inputs_params(p);
  params.sequences = sequences_params(p);
  params.scores = scores_params(p);
  params.masks = masks_params(p);
  params.arrays = arrays_params(p);
  params.tile_map = tile_map_params(map, scratch, memory);
  params.output = output_params(p);
  params.d_out = operand(p.tensors[Name::d_out]);
  params.d_lse = operand(p.tensors[Name::d_lse]);
  params.dq = gradient(p, Name::dq, Gradient::dq);
  params.dk = gradient(p, Name::dk, Gradient::dk);
  params.dv = gradient(p, Name::dv, Gradient::dv);
  params.d_bias = bias_gradient(p);
  params.d_sink = head_gradient(p, p.d_sink, Gradient::d_sink);
  params.d_alibi_slopes = head_gradient(p, p.d_alibi_slopes, Gradient::d_alibi_slopes);
  params.rows = reinterpret_cast<portable::BackwardRowPair*>(at(scratch.rows));
  params.tiles = reinterpret_cast<portable::QueryTile*>(at(scratch.tiles));
  params.turns = reinterpret_cast<uint32_t*>(at(scratch.turns));
  params.dq_sums = reinterpret_cast<float*>(at(scratch.dq_sums));
  params.slope_sums = reinterpret_cast<float*>(at(scratch.slope_sums));
  params.ticket = reinterpret_cast<uint32_t*>(at(scratch.ticket));
  params.tiles_q = narrow(map.tiles_q);
  params.tiles_of_head = narrow(tiles_of_head(p, c));
  params.kv_tiles = narrow(ceil_div(p.seqlen_kv, c.tile_kv));
  params.slope_tiles = narrow(slope_tiles(p, c));
  params.section_heads = narrow(section_heads(p, c, params.kv_tiles, at_once));
  params.heads_kv = narrow(p.heads_kv);
  params.rows_are_aligned =
      rows_are_aligned(p.out(), p.head_dim_v) && rows_are_aligned(p.tensors[Name::d_out], p.head_dim_v) ? 1 : 0;
  return params;
}

int64_t backward_row_blocks(const AttentionArguments& p, const BackwardSm80Config& c) {
  const bool is_packed = p.features.has_any(Feature::packed_q | Feature::packed_kv);
  return tile_map(p, c).tiles_q * p.heads_q * (p.batch + (is_packed ? 1 : 0));
}

Step backward_step(const Program& program, const BackwardSm80Config& c, int threads, int shared_bytes,
                   BackwardBlocks blocks, BackwardParameters parameters) {
  return {.program = program,
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = shared_bytes,
          .launch = [c, blocks, parameters](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                                            const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            const int64_t count = blocks(arguments, c);
            if (count == 0) return std::nullopt;
            return Launch{{static_cast<unsigned>(count), 1, 1}, parameters(arguments, c, workspace, at_once)};
          }};
}

Step backward_step(const Program& program, const BackwardSm80Config& c, int threads, int shared_bytes,
                   BackwardBlocks blocks) {
  return backward_step(
      program, c, threads, shared_bytes, blocks,
      [](const AttentionArguments& p, const BackwardSm80Config& config, const core::Workspace& workspace,
         const Concurrency& at_once) { return Parameters(backward_params(p, config, workspace, at_once)); });
}

namespace {

// Over tiles of scores.
Step tile_step(const char* file, const char* kernel, const BackwardSm80Config& c, const std::string& user,
               BackwardBlocks blocks) {
  return backward_step(backward_program(file, kernel, c, user), c, c.num_warps * 32, shared_bytes(c), blocks);
}
// Over rows, which know no score: one program serves the calls of every feature. masks: those that it reads.
Step row_step(const char* kernel, const BackwardSm80Config& c, int threads, int shared_bytes, BackwardBlocks blocks,
              const portable::ScoreConfig& masks = {}, const std::string& user = user_source()) {
  BackwardSm80Config of_rows = c;
  of_rows.score = masks;
  of_rows.score.elements = c.score.elements;
  of_rows.score.mask = c.score.mask;
  of_rows.stages = 1;
  of_rows.vector_loads = true;
  return backward_step(backward_program("backward_sm80/backward_rows.cuh", kernel, of_rows, user), c, threads,
                       shared_bytes, blocks);
}
// The first one. With a sink the element masks say which queries see a key.
Step first_row_step(const AttentionShape& bounds, const BackwardSm80Config& c, const std::string& user) {
  const bool reads_masks = bounds.features.has(Feature::sink);
  return row_step("backward_rows", c, portable::kBackwardRowThreads, portable::kBackwardRowBytes, backward_row_blocks,
                  reads_masks ? portable::masks_of(c.score) : portable::ScoreConfig{},
                  reads_masks && c.score.mask_mod ? user : user_source());
}

// Blocks of the grids over key tiles.
int64_t key_blocks(const AttentionArguments& p, const BackwardSm80Config& c) {
  return p.wants_scores() ? p.batch * p.heads_kv * ceil_div(p.seqlen_kv, c.tile_kv) : 0;
}
int64_t dq_blocks(const AttentionArguments& p, const BackwardSm80Config& c) {
  return p.wants(Name::dq) ? backward_row_blocks(p, c) : 0;
}
int64_t head_blocks(const AttentionArguments& p, const BackwardSm80Config&) {
  const auto entries = [&](const core::ScoreGradient& t) {
    return t.data == nullptr ? 0 : t.batch_stride == 0 ? 1 : p.batch;
  };
  return p.heads_q * std::max(entries(p.d_sink), entries(p.d_alibi_slopes));
}
int64_t bias_blocks(const AttentionArguments& p, const BackwardSm80Config& c) {
  const core::ScoreGradient& t = p.d_bias;
  if (t.data == nullptr) return 0;
  const auto axis = [](int64_t stride, int64_t size) { return stride == 0 ? 1 : size; };
  return axis(t.batch_stride, p.batch) * axis(t.head_stride, p.heads_q) *
         axis(t.q_stride, ceil_div(t.queries, c.tile_q)) * axis(t.kv_stride, ceil_div(t.keys, c.tile_kv));
}

}  // namespace

int64_t backward_bytes(const AttentionShape& bounds, const BackwardSm80Config& c, bool with_dq_sums) {
  const Scratch scratch(bounds, c, largest_tile_map(bounds, c));
  return with_dq_sums ? scratch.bytes : scratch.dq_sums;
}

std::string backward_ineligible(const AttentionShape& p, const BackwardSm80Config& c, const DeviceInfo& device) {
  if (p.operands[Name::d_out].dtype != p.dtype()) {
    return message("takes d_out of q's dtype, and it is ", core::name(p.operands[Name::d_out].dtype));
  }
  if (std::string lacking = lacks(p, shared_bytes(c), device); !lacking.empty()) return lacking;
  if (std::string reason = too_large_map(p); !reason.empty()) return reason;
  if (std::string reason = too_large(p, c); !reason.empty()) return reason;
  if (p.batch * p.heads_kv * ceil_div(p.seqlen_kv, c.tile_kv) > kMaxBlocks) {
    return message("batch * heads_kv * seqlen_kv makes more than ", kMaxBlocks, " tiles");
  }
  return "";
}

void add_steps_before(Recipe& recipe, const AttentionShape& bounds, const BackwardSm80Config& c,
                      const std::string& user) {
  add_mask_passes(recipe, bounds, c, user,
                  [c](const AttentionArguments& arguments, const TileMap& map, const core::Workspace& workspace) {
                    return tile_map_params(map, Scratch(arguments, c, map), workspace);
                  });
  recipe.steps.push_back(first_row_step(bounds, c, user));
}

std::vector<Step> steps_behind(const AttentionShape& bounds, const BackwardSm80Config& c, const std::string& user) {
  std::vector<Step> steps;
  if (bounds.features.has_any(Feature::d_sink | Feature::d_alibi_slopes)) {
    steps.push_back(
        row_step("backward_heads", c, portable::kBackwardRowThreads, portable::kBackwardRowBytes, head_blocks));
  }
  if (bounds.features.has(Feature::d_bias)) {
    steps.push_back(tile_step("backward_sm80/backward_bias.cuh", "backward_bias", c, user, bias_blocks));
  }
  return steps;
}

Recipe backward_sm80_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AttentionShape& bounds = core::attention(shape);
  const BackwardSm80Config c = backward_sm80_config(bounds, device);
  if (std::string reason = backward_ineligible(bounds, c, device); !reason.empty()) return {.ineligible = reason};
  const std::string user = user_source_with_gradient(bounds.score_mod, bounds.mask_mod, bounds.score_mod_gradient);
  Recipe recipe{
      .workspace = {.scratch_bytes = backward_bytes(bounds, c, true)},
      .description = message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.num_warps,
                             c.num_warps == 1 ? " warp" : " warps", ", head dims as compiled ", c.head_dim_qk, " and ",
                             c.head_dim_v, ", ", c.stages, c.stages == 1 ? " stage, " : " stages, ",
                             c.vector_loads ? "16-byte" : "scalar", " loads, dQ's sums in ",
                             c.in_order ? "order, " : "any order, ", shared_bytes(c), " bytes of shared memory")};
  add_steps_before(recipe, bounds, c, user);
  recipe.steps.push_back(tile_step("backward_sm80/backward_sm80.cuh", "backward_sm80", c, user, key_blocks));
  recipe.steps.back().blocks_wait = true;
  if (bounds.operands[Name::dq].dtype != core::DType::none) {
    recipe.steps.push_back(row_step("backward_dq", c, c.num_warps * 32, 0, dq_blocks));
  }
  for (Step& step : steps_behind(bounds, c, user)) recipe.steps.push_back(std::move(step));
  return recipe;
}

core::Cost backward_sm80_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& arguments = core::attention(call);
  const BackwardSm80Config c = backward_sm80_config(arguments, device);
  return backward_cost(arguments, c, static_cast<double>(backward_bytes(arguments, c, true)));
}

}  // namespace tessella::cuda
