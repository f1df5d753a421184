#include "cuda/forward_sm80/recipe.hpp"

#include <memory>
#include <optional>
#include <string>

#include "core/message.hpp"
#include "core/plan.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/forward_sm80/config.hpp"
#include "cuda/launch/classify.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "cuda/launch/loaded_kernel.hpp"
#include "cuda/launch/tile_map.hpp"

namespace tessella::cuda {
namespace {

using core::message;
using core::Problem;
using portable::ForwardSm80Config;
using portable::MaskLevel;

// What a plan holds: all that running it needs beside the call's own arguments.
struct Prepared {
  ForwardSm80Config config;
  Concurrency at_once;
  std::shared_ptr<const LoadedKernel> forward;
  std::shared_ptr<const LoadedKernel> classify;  // null where every mask is an interval
};

ForwardSm80Config config_of(const Problem& p) { return forward_sm80_config(p, device_info(p.device.id)); }

std::string unavailable(core::Device device) {
  if (std::string problem = device_problem(device.id); !problem.empty()) return problem;
  return device_problem(device_info(device.id));
}

std::string refuses(const Problem& p) {
  const DeviceInfo& device = device_info(p.device.id);
  const ForwardSm80Config config = forward_sm80_config(p, device);
  if (std::string lacking = lacks(p, shared_bytes(config), device); !lacking.empty()) return lacking;
  return too_large(p, config);
}

core::WorkspaceSize workspace(const Problem& bounds, int) {
  return {.scratch_bytes = largest_tile_map(bounds, config_of(bounds)).bytes()};
}

std::string describe(const Problem& p, int) {
  const DeviceInfo& device = device_info(p.device.id);
  const ForwardSm80Config c = forward_sm80_config(p, device);
  const std::optional<ForwardSm80Config> longer = for_small_text(c, device.arch);
  std::string text =
      message("tiles ", c.tile_q, " x ", c.tile_kv,
              longer ? message(" (", longer->tile_kv, " if the text leaves the registers)") : "", ", ", c.num_warps,
              c.num_warps == 1 ? " warp" : " warps", ", head dims as compiled ", c.head_dim_qk, " and ", c.head_dim_v);
  if (const int32_t slices = slices_v(p, c); slices > 1) text += message(" x ", slices, " slices");
  return text + message(", ", c.vector_loads ? "16-byte" : "scalar", " loads, ", shared_bytes(c),
                        " bytes of shared memory, ",
                        origin(forward_sm80_program(c, user_text(p.score, p.keep)), {.arch = device.arch}));
}

std::shared_ptr<const void> prepare(const Problem& bounds) {
  const DeviceInfo& device = device_info(bounds.device.id);
  ForwardSm80Config config = forward_sm80_config(bounds, device);
  const std::string texts = user_text(bounds.score, bounds.keep);
  if (const std::optional<ForwardSm80Config> longer = for_small_text(config, device.arch)) {
    if (find_or_compile(forward_sm80_program(*longer, texts), device.arch)->resources.stack_bytes == 0)
      config = *longer;
  }
  auto prepared =
      std::make_shared<Prepared>(Prepared{.config = config, .at_once = concurrency(config.blocks_per_sm, device)});
  prepared->forward = load(forward_sm80_program(config, texts), device.id, shared_bytes(config));
  if (config.score.mask == MaskLevel::bits) prepared->classify = load(classify_program(config, texts), device.id, 0);
  return prepared;
}

void run(const Problem& p, const core::Plan& plan, core::Workspace workspace, void* stream) {
  const auto& prepared = *static_cast<const Prepared*>(plan.prepared.get());
  const ForwardSm80Config& config = prepared.config;
  const TileMap map = tile_map(p, config);
  const portable::ForwardParams params = forward_params(p, config, map, workspace.scratch, prepared.at_once);
  const auto blocks = static_cast<unsigned>(forward_blocks(p, map));
  if (blocks == 0 || p.total_q == 0) return;
  const CurrentDevice current(p.device.id);
  if (const unsigned blocks_of_map = map.classify_blocks(); blocks_of_map > 0) {
    prepared.classify->launch({.grid = {blocks_of_map, 1, 1}, .block = portable::kClassifyWarps * 32}, params, stream);
  }
  prepared.forward->launch({.grid = {blocks, static_cast<unsigned>(params.slices_v), 1},
                            .block = static_cast<unsigned>(config.num_warps) * 32},
                           params, stream);
}

}  // namespace

core::Kernel forward_sm80() {
  core::Kernel kernel;
  kernel.name = "cuda.forward_sm80";
  kernel.summary = "FlashAttention-2 by the matrix instructions of a warp, any GPU from Ampere on";
  kernel.device = core::DeviceType::cuda;
  kernel.dtypes = dtype_bit(core::DType::bf16) | dtype_bit(core::DType::f16) | dtype_bit(core::DType::f32);
  kernel.max_head_dim = 512;
  kernel.features = core::all_features();
  kernel.unavailable = unavailable;
  kernel.refuses = refuses;
  kernel.workspace = workspace;
  kernel.cost = [](const Problem& p) { return forward_cost(p, config_of(p)); };
  kernel.describe = describe;
  kernel.prepare = prepare;
  kernel.run = run;
  return kernel;
}

}  // namespace tessella::cuda
