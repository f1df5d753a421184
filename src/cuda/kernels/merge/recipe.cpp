#include "cuda/kernels/merge/recipe.hpp"

#include <algorithm>
#include <bit>

#include "core/message.hpp"
#include "cuda/kernels/merge/config.hpp"
#include "operations/merge/arguments.hpp"

namespace tessella::cuda {
namespace {

using core::MergeArguments;
using core::message;
using portable::kMostMergeStates;
using portable::MergeConfig;
using portable::MergeParams;
using portable::MergeState;

MergeState state(const MergeArguments::State& s) {
  return {s.out.data,         reinterpret_cast<float*>(s.lse.data),
          s.out.batch_stride, s.out.row_stride,
          s.out.head_stride,  s.lse.batch_stride,
          s.lse.row_stride,   s.lse.head_stride};
}

// One step's result for the next step: rows of fp32, then their LSEs.
MergeState state_in_scratch(const core::MergeShape& p, void* scratch) {
  auto* out = static_cast<float*>(scratch);
  const int64_t heads = p.heads, rows = p.seqlen * heads;
  return {out,       out + p.batch * rows * p.head_dim, rows * p.head_dim, heads * p.head_dim, p.head_dim, rows, heads,
          int64_t{1}};
}
int64_t scratch_bytes(const core::MergeShape& p) {
  return p.batch * p.seqlen * p.heads * (p.head_dim + 1) * static_cast<int64_t>(sizeof(float));
}

// Threads of a row: a power of two, as many as it has pieces or the next more, at most those of a warp.
int32_t log2_lanes(const MergeConfig& c, int64_t head_dim) {
  const int64_t pieces = (head_dim + portable::piece(c) - 1) / portable::piece(c);
  return std::countr_zero(static_cast<uint64_t>(std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(pieces)), 32)));
}

// States [first, last) of the call.
Step merge_step(const MergeConfig& config, int32_t first, int32_t last, bool is_last) {
  return {.program = merge_program(config),
          .threads = portable::kMergeThreads,
          .blocks_per_sm = portable::kMergeBlocksPerSm,
          .launch = [=](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                        const core::Workspace& workspace) -> std::optional<Launch> {
            const MergeArguments& a = core::merge(call);
            MergeParams params{};
            for (int32_t i = first; i < last; ++i) params.states[i - first] = state(a.given[static_cast<size_t>(i)]);
            if (config.continues) params.before = state_in_scratch(a, workspace.scratch);
            params.result = is_last ? state(a.result) : state_in_scratch(a, workspace.scratch);
            params.rows = a.batch * a.seqlen * a.heads;
            params.num_states = last - first;
            params.seqlen = static_cast<int32_t>(a.seqlen);
            params.heads = static_cast<int32_t>(a.heads);
            params.head_dim = static_cast<int32_t>(a.head_dim);
            params.log2_lanes = log2_lanes(config, a.head_dim);
            if (params.rows == 0) return std::nullopt;
            const int64_t rows_of_block = portable::kMergeThreads >> params.log2_lanes;
            const int64_t blocks = std::min(at_once.blocks, (params.rows + rows_of_block - 1) / rows_of_block);
            return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
          }};
}

}  // namespace

Recipe merge_recipe(const core::Shape& shape, const DeviceInfo&) {
  const core::MergeShape& bounds = core::merge(shape);
  Recipe recipe;
  for (int32_t first = 0; first < bounds.num_states; first += kMostMergeStates) {
    const int32_t last = std::min(first + kMostMergeStates, bounds.num_states);
    const bool is_last = last == bounds.num_states;
    recipe.steps.push_back(merge_step(merge_config(bounds, first > 0, is_last), first, last, is_last));
  }
  const size_t steps = recipe.steps.size();
  if (steps > 1) recipe.workspace.scratch_bytes = scratch_bytes(bounds);
  recipe.description = message(merge_config(bounds, false, true).vectors ? "16-byte" : "scalar", " loads, ", steps,
                               steps == 1 ? " step" : message(" steps of at most ", kMostMergeStates, " states"));
  return recipe;
}

}  // namespace tessella::cuda
