#include "cuda/ladder/recipe.hpp"

#include <memory>
#include <string>
#include <vector>

#include "core/message.hpp"
#include "core/plan.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/forward_sm80/recipe.hpp"
#include "cuda/ladder/config.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "cuda/launch/loaded_kernel.hpp"
#include "portable/ladder_params.hpp"

namespace tessella::cuda {
namespace {

using core::message;
using core::Problem;
using portable::LadderConfig;

constexpr int64_t kMaxBlocksY = 65535;
constexpr double kMaxBytes = 0x1p48;
constexpr int32_t kBlocksPerSm = 2;

LadderConfig config_of(const Problem& p) { return ladder_config(p, device_info(p.device.id)); }

// What a rung differs in.
struct Standard {
  static constexpr const char* kFile = "standard.hpp";
  static constexpr const char* kKernels[] = {"standard_scores", "standard_softmax", "standard_output"};
  static double bytes(const Problem& p, const LadderConfig& c) { return standard_bytes(p, c); }
  static core::Cost cost(const Problem& p) { return standard_cost(p, config_of(p)); }
  // Of each kernel.
  static std::vector<Launch> launches(const portable::ForwardParams& p, unsigned blocks) {
    const auto kv_tiles = static_cast<unsigned>(p.kv_tiles), slices = static_cast<unsigned>(p.slices_v);
    return {{.grid = {blocks, kv_tiles, 1}}, {.grid = {blocks, 1, 1}}, {.grid = {blocks, slices, 1}}};
  }
};

struct Flash1 {
  static constexpr const char* kFile = "flash_1.hpp";
  static constexpr const char* kKernels[] = {"flash_1"};
  static double bytes(const Problem& p, const LadderConfig& c) { return flash_1_bytes(p, c); }
  static core::Cost cost(const Problem& p) { return flash_1_cost(p, config_of(p)); }
  static std::vector<Launch> launches(const portable::ForwardParams& p, unsigned blocks) {
    return {{.grid = {blocks / static_cast<unsigned>(p.tiles_q), static_cast<unsigned>(p.slices_v), 1}}};
  }
};

struct Prepared {
  LadderConfig config;
  Concurrency at_once;
  std::vector<std::shared_ptr<const LoadedKernel>> kernels;
};

template <class Rung>
struct Row {
  static std::string refuses(const Problem& p) {
    const DeviceInfo& device = device_info(p.device.id);
    const LadderConfig config = ladder_config(p, device);
    const TileMap map = tile_map(p, config);
    if (std::string lacking = lacks(p, shared_bytes(config), device); !lacking.empty()) return lacking;
    if (forward_blocks(p, map) > kMaxBlocks || map.kv_tiles > kMaxBlocksY || Rung::bytes(p, config) > kMaxBytes) {
      return "is there to be compared, and the call is too large for it";
    }
    return "";
  }
  static core::WorkspaceSize workspace(const Problem& bounds, int) {
    return {.scratch_bytes = static_cast<int64_t>(Rung::bytes(bounds, config_of(bounds)))};
  }
  static std::string describe(const Problem& p, int) {
    const LadderConfig c = config_of(p);
    return message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.num_warps, c.num_warps == 1 ? " warp" : " warps",
                   ", compiled when planned");
  }
  static std::shared_ptr<const void> prepare(const Problem& bounds) {
    const DeviceInfo& device = device_info(bounds.device.id);
    const LadderConfig config = ladder_config(bounds, device);
    auto prepared =
        std::make_shared<Prepared>(Prepared{.config = config, .at_once = concurrency(kBlocksPerSm, device)});
    const std::string texts = user_text(bounds.score, bounds.keep);
    for (const char* kernel : Rung::kKernels) {
      const Program program = ladder_program(Rung::kFile, kernel, prepared->config, texts);
      prepared->kernels.push_back(load(program, device.id, shared_bytes(prepared->config)));
    }
    return prepared;
  }
  static void run(const Problem& p, const core::Plan& plan, core::Workspace workspace, void* stream) {
    const auto& prepared = *static_cast<const Prepared*>(plan.prepared.get());
    const TileMap map = tile_map(p, prepared.config);
    const portable::LadderParams params{forward_params(p, prepared.config, map, nullptr, prepared.at_once),
                                        static_cast<float*>(workspace.scratch)};
    const auto blocks = static_cast<unsigned>(forward_blocks(p, map));
    if (blocks == 0 || p.total_q == 0) return;
    const CurrentDevice current(p.device.id);
    std::vector<Launch> launches = Rung::launches(params.forward, blocks);
    for (size_t i = 0; i < launches.size(); ++i) {
      launches[i].block = static_cast<unsigned>(prepared.config.num_warps) * 32;
      prepared.kernels[i]->launch(launches[i], params, stream);
    }
  }

  static core::Kernel kernel(std::string_view name, std::string_view summary) {
    core::Kernel kernel = forward_sm80();  // the same calls, on the same GPUs
    kernel.name = name;
    kernel.summary = summary;
    kernel.automatic = 0;
    kernel.refuses = refuses;
    kernel.workspace = workspace;
    kernel.cost = Rung::cost;
    kernel.describe = describe;
    kernel.prepare = prepare;
    kernel.run = run;
    return kernel;
  }
};

}  // namespace

core::Kernel ladder_standard() {
  return Row<Standard>::kernel("cuda.standard", "standard attention: three kernels, an N x N matrix in memory");
}

core::Kernel ladder_flash_1() {
  return Row<Flash1>::kernel("cuda.flash_1", "FlashAttention-1: K, V outside; O, l, m rescaled in memory");
}

}  // namespace tessella::cuda
