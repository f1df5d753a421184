#include "cuda/kernels/ladder/recipe.hpp"

#include <span>

#include "core/message.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/kernels/ladder/config.hpp"
#include "cuda/kernels/ladder/params.cuh"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::message;
using portable::LadderConfig;
using Grid = std::array<unsigned, 3>;

constexpr int64_t kMaxBlocksY = 65535;
constexpr double kMaxBytes = 0x1p48;
constexpr int32_t kBlocksPerSm = 2;

// One of an algorithm's kernels. grid: of so many tiles of queries, those of all heads.
struct Kernel {
  const char* name;
  Grid (*grid)(const portable::LadderParams& params, unsigned tiles);
};

Step step_of(const char* file, const Kernel& kernel, const LadderConfig& config, const std::string& user) {
  return {.program = ladder_program(file, kernel.name, config, user),
          .threads = static_cast<unsigned>(config.num_warps) * 32,
          .shared_bytes = shared_bytes(config),
          .blocks_per_sm = kBlocksPerSm,
          .launch = [config, grid = kernel.grid](const core::Shape&, const core::Arguments& call,
                                                 const Concurrency& at_once,
                                                 const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            const TileMap map = tile_map(arguments, config);
            if (!has_rows(arguments, map)) return std::nullopt;
            const portable::LadderParams params{forward_params(arguments, config, map, {}, at_once),
                                                narrow(map.kv_tiles), static_cast<float*>(workspace.scratch)};
            const auto tiles = static_cast<unsigned>(forward_blocks(arguments, map));
            return Launch{grid(params, tiles), Parameters(params)};
          }};
}

// bytes: that the algorithm keeps in memory.
Recipe ladder_recipe(const core::AttentionShape& bounds, const DeviceInfo& device, const char* file,
                     std::span<const Kernel> kernels,
                     double (*bytes)(const core::AttentionShape&, const ForwardTiles&)) {
  const auto c = ladder_config(bounds, device);
  if (std::string lacking = lacks(bounds, shared_bytes(c), device); !lacking.empty()) return {.ineligible = lacking};
  const TileMap map = largest_tile_map(bounds, c);
  if (forward_blocks(bounds, map) > kMaxBlocks || map.kv_tiles > kMaxBlocksY || bytes(bounds, c) > kMaxBytes) {
    return {.ineligible = "is there to be compared, and the call is too large for it"};
  }
  Recipe recipe{.workspace = {.scratch_bytes = static_cast<int64_t>(bytes(bounds, c))},
                .description = message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.num_warps,
                                       c.num_warps == 1 ? " warp" : " warps")};
  const std::string user = user_source(bounds.score_mod, bounds.mask_mod);
  for (const Kernel& kernel : kernels) recipe.steps.push_back(step_of(file, kernel, c, user));
  return recipe;
}

}  // namespace

Recipe standard_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const core::AttentionShape& bounds = core::attention(shape);
  static constexpr Kernel kKernels[] = {{"standard_scores",
                                         [](const portable::LadderParams& p, unsigned tiles) {
                                           return Grid{tiles, static_cast<unsigned>(p.kv_tiles), 1};
                                         }},
                                        {"standard_softmax",
                                         [](const portable::LadderParams&, unsigned tiles) {
                                           return Grid{tiles, 1, 1};
                                         }},
                                        {"standard_output", [](const portable::LadderParams& p, unsigned tiles) {
                                           return Grid{tiles, static_cast<unsigned>(p.forward.tiling.slices_v), 1};
                                         }}};
  return ladder_recipe(bounds, device, "standard.cuh", kKernels, standard_bytes);
}

core::Cost standard_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& arguments = core::attention(call);
  return standard_cost(arguments, ladder_config(arguments, device));
}

// A block for each head and slice of v.
Recipe flash_1_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const core::AttentionShape& bounds = core::attention(shape);
  static constexpr Kernel kKernels[] = {{"flash_1", [](const portable::LadderParams& p, unsigned tiles) {
                                           return Grid{tiles / static_cast<unsigned>(p.forward.tiling.tiles_q),
                                                       static_cast<unsigned>(p.forward.tiling.slices_v), 1};
                                         }}};
  return ladder_recipe(bounds, device, "flash_1.cuh", kKernels, flash_1_bytes);
}

core::Cost flash_1_cost(const core::Arguments& call, const DeviceInfo& device) {
  const AttentionArguments& arguments = core::attention(call);
  return flash_1_cost(arguments, ladder_config(arguments, device));
}

}  // namespace tessella::cuda
