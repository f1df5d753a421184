// Backward on a GPU without its tiles: the memory, and the steps before and after the tiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/launch/recipe.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/backward_params.hpp"

namespace tessella::cuda {

// Why no algorithm in these tiles runs the call, or "".
std::string backward_ineligible(const core::AttentionShape& bounds, const portable::BackwardSm80Config& config,
                                const DeviceInfo& device);

// Bytes of scratch; dQ's sums are the last section.
int64_t backward_bytes(const core::AttentionShape& bounds, const portable::BackwardSm80Config& config,
                       bool with_dq_sums);

portable::BackwardParams backward_params(const core::AttentionArguments& arguments,
                                         const portable::BackwardSm80Config& config, const core::Workspace& workspace,
                                         const Concurrency& at_once);

// A kernel of backward. blocks: of a call, 0 where it has none of the step.
using BackwardBlocks = int64_t (*)(const core::AttentionArguments& call, const portable::BackwardSm80Config& config);
using BackwardParameters = Parameters (*)(const core::AttentionArguments& call,
                                          const portable::BackwardSm80Config& config, const core::Workspace& workspace,
                                          const Concurrency& at_once);
Step backward_step(const Program& program, const portable::BackwardSm80Config& config, int threads, int shared_bytes,
                   BackwardBlocks blocks, BackwardParameters parameters);
// One whose parameters are BackwardParams.
Step backward_step(const Program& program, const portable::BackwardSm80Config& config, int threads, int shared_bytes,
                   BackwardBlocks blocks);

// Classes of tiles, and what each query brings along; the schedule, if the call has one.
void add_steps_before(Recipe& recipe, const core::AttentionShape& bounds, const portable::BackwardSm80Config& config,
                      const std::string& user_source);
// Gradients of sinks, slopes and bias.
std::vector<Step> steps_behind(const core::AttentionShape& bounds, const portable::BackwardSm80Config& config,
                               const std::string& user_source);

// Blocks of a grid with one block for each query tile (kernels/backward_sm80/backward_rows.cuh: RowTile).
int64_t backward_row_blocks(const core::AttentionArguments& arguments, const portable::BackwardSm80Config& config);

}  // namespace tessella::cuda
