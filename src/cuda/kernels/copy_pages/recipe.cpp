#include "cuda/kernels/copy_pages/recipe.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/kernels/copy_pages/params.cuh"
#include "operations/copy_pages/arguments.hpp"
#include "operations/copy_pages/page_runs.hpp"

namespace tessella::cuda {
namespace {

using core::CopyPagesArguments;
using core::message;
using portable::CopyPagesConfig;
using portable::CopyPagesParams;
using portable::kMostPools;

portable::PoolParams pool_params(const CopyPagesArguments::Pool& pool, int64_t piece_bytes) {
  const core::PageRuns runs = core::page_runs(pool);
  const int64_t run = runs.bytes / piece_bytes;
  return {.data = runs.data,
          .page_stride = runs.page_stride / piece_bytes,
          .outer_stride = runs.outer_stride / piece_bytes,
          .inner_stride = runs.inner_stride / piece_bytes,
          .pieces = runs.outer * runs.inner * run,
          .run = run,
          .inner = static_cast<int32_t>(runs.inner)};
}

// Pools [first, last) of the call.
Step copy_pages_step(const CopyPagesConfig& config, int64_t first, int64_t last, bool is_dependent) {
  return {
      .program = {.header = "cuda/kernels/copy_pages/copy_pages.cuh", .expression = expression("copy_pages", config)},
      .threads = portable::kCopyPagesThreads,
      .blocks_per_sm = portable::kCopyPagesBlocksPerSm,
      .is_dependent = is_dependent,
      .launch = [=](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                    const core::Workspace&) -> std::optional<Launch> {
        const CopyPagesArguments& a = core::copy_pages(call);
        CopyPagesParams params{};
        int64_t pieces = 0;  // of the largest page
        for (int64_t i = first; i < last; ++i) {
          params.pools[i - first] = pool_params(a.given[static_cast<size_t>(i)], config.piece_bytes);
          pieces = std::max(pieces, params.pools[i - first].pieces);
        }
        constexpr int64_t kPortion = portable::kCopyPagesThreads * portable::kCopyPagesPieces;
        params.pairs = {a.pairs.data, a.pairs.batch_stride, a.pairs.stride};
        params.num_pools = static_cast<int32_t>(last - first);
        params.num_pairs = static_cast<int32_t>(a.num_pairs);
        params.num_pages = static_cast<int32_t>(a.num_pages);
        params.portions = static_cast<int32_t>((pieces + kPortion - 1) / kPortion);
        params.num_tasks = (last - first) * a.num_pairs * params.portions;
        if (params.num_tasks == 0) return std::nullopt;
        const int64_t blocks = std::min(at_once.blocks, params.num_tasks);
        return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
      }};
}

}  // namespace

Recipe copy_pages_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const core::CopyPagesShape& bounds = core::copy_pages(shape);
  const CopyPagesConfig config{.piece_bytes = bounds.pools.alignment};
  Recipe recipe;
  for (int64_t first = 0; first < bounds.num_pools; first += kMostPools) {
    const int64_t last = std::min<int64_t>(first + kMostPools, bounds.num_pools);
    recipe.steps.push_back(copy_pages_step(config, first, last, device.arch >= 90));
  }
  const size_t steps = recipe.steps.size();
  recipe.description = message(
      config.piece_bytes,
      steps == 1 ? "-byte loads, 1 step" : message("-byte loads, ", steps, " steps of at most ", kMostPools, " pools"));
  return recipe;
}

}  // namespace tessella::cuda
