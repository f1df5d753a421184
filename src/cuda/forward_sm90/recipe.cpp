#include "cuda/forward_sm90/recipe.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "core/message.hpp"
#include "core/plan.hpp"
#include "core/sequence.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/compile/user_source.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/driver/tensor_map.hpp"
#include "cuda/forward_sm90/config.hpp"
#include "cuda/launch/classify.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_cost.hpp"
#include "cuda/launch/loaded_kernel.hpp"
#include "cuda/launch/tile_map.hpp"

namespace tessella::cuda {
namespace {

using core::Feature;
using core::message;
using core::Problem;
using portable::ForwardSm90Config;
using portable::MaskLevel;

constexpr int kArch = 90;

// One kernel of a plan.
struct Form {
  ForwardSm90Config config;
  std::shared_ptr<const LoadedKernel> forward;
  int num_blocks = 0;  // at most: each stays on a multiprocessor
};
struct Prepared {
  Form alone, in_pairs;  // the latter for calls with an even number of tiles, where there are such
  int64_t l2_bytes = 0;
  std::shared_ptr<const LoadedKernel> classify;  // null where every mask is an interval
};

// Of a block: those that multiply and those that load.
unsigned threads(const ForwardSm90Config& config) { return static_cast<unsigned>(num_threads(config)); }

std::string unavailable(core::Device device) {
  if (std::string problem = device_problem(device.id); !problem.empty()) return problem;
  const DeviceInfo& info = device_info(device.id);
  if (info.arch == kArch) return "";
  return message("runs on Hopper (sm_90), and GPU ", info.id, " (", info.name, ") is sm_", info.arch);
}

core::WorkspaceSize workspace(const Problem& bounds, int) {
  const TileMap map = largest_tile_map(bounds, forward_sm90_config(bounds));
  return {.state_bytes = sizeof(uint32_t), .scratch_bytes = map.seen_bytes() + map.bytes()};
}

core::Cost cost(const Problem& p) {
  core::Cost cost = forward_cost(p, forward_sm90_config(p));
  cost.extra_bytes = static_cast<double>(workspace(p, 0).scratch_bytes);
  return cost;
}

std::string refuses(const Problem& p) {
  constexpr int32_t kAlignment = 16;
  if (p.alignment < kAlignment || p.head_dim_qk % 8 != 0 || p.head_dim_v % 8 != 0) {
    return message("the copy engine reads rows, heads and batches that start at multiples of ", kAlignment,
                   " bytes; q, k and v are aligned to ", p.alignment, " bytes, head dims are ", p.head_dim_qk, " and ",
                   p.head_dim_v);
  }
  if (p.page_size % portable::kSwizzleRows != 0) {
    return message("the copy engine reads pages of a multiple of ", portable::kSwizzleRows, " rows; these have ",
                   p.page_size);
  }
  if (p.page_size != 0 && p.features.has(Feature::leftpad_kv)) {
    return "leftpad_kv moves tiles of keys off the borders of pages";
  }
  if (const int64_t longest = std::max({p.seqlen_q, p.seqlen_kv}); longest > portable::kHopperLongest) {
    return message("takes sequences of at most ", portable::kHopperLongest, " queries and keys; these have ", longest);
  }
  const ForwardSm90Config config = forward_sm90_config(p);
  const int num_sms = device_info(p.device.id).num_sms;
  if (config.score.mask == MaskLevel::bits && p.num_sms > 0 && p.num_sms < num_sms) {
    return message("the pass over a mask's tiles leaves no multiprocessor free, and num_sms is ", p.num_sms, " of ",
                   num_sms);
  }
  return too_large(p, config);
}

std::shared_ptr<const void> prepare(const Problem& bounds) {
  const DeviceInfo& device = device_info(bounds.device.id);
  const ForwardSm90Config config = forward_sm90_config(bounds);
  const std::string texts = user_text(bounds.score, bounds.keep);
  const int num_sms = bounds.num_sms > 0 ? std::min(bounds.num_sms, device.num_sms) : device.num_sms;
  const auto loaded = [&](const ForwardSm90Config& c) {
    return load(forward_sm90_program(c, texts), device.id, portable::forward_sm90_layout(c).bytes);
  };
  auto prepared = std::make_shared<Prepared>();
  prepared->l2_bytes = device.l2_bytes;
  prepared->alone = {config, loaded(config), num_sms};
  if (const std::optional<ForwardSm90Config> paired = in_pairs(config, bounds)) {
    const std::shared_ptr<const LoadedKernel> forward = loaded(*paired);
    const int pairs = forward->resident_clusters(static_cast<unsigned>(paired->cluster), threads(*paired));
    if (pairs > 0) prepared->in_pairs = {*paired, forward, pairs * paired->cluster};
  }
  if (config.score.mask == MaskLevel::bits) prepared->classify = load(classify_program(config, texts), device.id, 0);
  return prepared;
}

void run(const Problem& p, const core::Plan& plan, core::Workspace workspace, void* stream) {
  const auto& prepared = *static_cast<const Prepared*>(plan.prepared.get());
  const TileMap map = tile_map(p, prepared.alone.config);
  const bool pairs = prepared.in_pairs.forward != nullptr && in_pairs(prepared.alone.config, p) && map.tiles_q % 2 == 0;
  const Form& form = pairs ? prepared.in_pairs : prepared.alone;
  const ForwardSm90Config& config = form.config;
  const int64_t items = forward_blocks(p, map);
  if (items == 0 || p.total_q == 0) return;
  const CurrentDevice current(p.device.id);
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  portable::ForwardSm90Params params =
      forward_sm90_params(p, config, map, workspace.state, workspace.scratch, {form.num_blocks, prepared.l2_bytes});
  params.q = tensor_map(p.q, {batch_q, rows_q, p.heads_q, p.head_dim_qk}, portable::kWarpgroupRows);
  params.k = tensor_map(p.k, {batch_kv, rows_kv, p.heads_kv, p.head_dim_qk}, params.box_kv);
  params.v = tensor_map(p.v, {batch_kv, rows_kv, p.heads_kv, p.head_dim_v}, params.box_kv);
  if (params.forward.out_vector_store != 0 && p.out.dtype == p.dtype) {
    params.out = tensor_map(p.out, {batch_q, rows_q, p.heads_q, p.head_dim_v}, portable::kWarpRows);
  }
  if (const unsigned blocks_of_map = map.classify_blocks(); blocks_of_map > 0) {
    prepared.classify->launch({.grid = {blocks_of_map, 1, 1}, .block = portable::kClassifyWarps * 32}, params.forward,
                              stream);
  }
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, form.num_blocks));
  const auto cluster = static_cast<unsigned>(config.cluster);
  form.forward->launch({.grid = {blocks, 1, 1}, .block = threads(config), .cluster = cluster}, params, stream);
}

std::string describe(const Problem& p, int) {
  const ForwardSm90Config c = forward_sm90_config(p);
  const portable::ForwardSm90Layout layout = portable::forward_sm90_layout(c);
  return message("tiles ", c.tile_q, " x ", c.tile_kv, ", ", c.tile_q / portable::kWarpgroupRows,
                 " warpgroups that multiply, head dims as "
                 "compiled ",
                 c.head_dim_qk, " and ", c.head_dim_v, ", ", layout.q_slots, " slots of q, ", layout.k_stages,
                 " stages of k and ", layout.v_stages, " of v, ", layout.bytes, " bytes of shared memory, ",
                 in_pairs(c, p) ? "an even number of tiles of queries in pairs of blocks, " : "",
                 origin(forward_sm90_program(c, user_text(p.score, p.keep)), {.arch = kArch, .arch_specific = true}));
}

}  // namespace

core::Kernel forward_sm90() {
  core::Kernel kernel;
  kernel.name = "cuda.forward_sm90";
  kernel.summary = "FlashAttention-3 with Hopper's copy engine and warpgroup matrix instructions";
  kernel.device = core::DeviceType::cuda;
  kernel.dtypes = dtype_bit(core::DType::bf16) | dtype_bit(core::DType::f16);
  kernel.max_head_dim = 256;
  kernel.features = core::all_features();
  kernel.unavailable = unavailable;
  kernel.refuses = refuses;
  kernel.workspace = workspace;
  kernel.cost = cost;
  kernel.describe = describe;
  kernel.prepare = prepare;
  kernel.run = run;
  return kernel;
}

}  // namespace tessella::cuda
