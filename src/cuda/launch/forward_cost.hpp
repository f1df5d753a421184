// Bytes that an algorithm's loops move between the GPU's memory and its blocks. It counts as if every byte came from
// memory and every sequence had its full length, because lengths are on the GPU.
#pragma once

#include "core/kernel.hpp"
#include "cuda/launch/forward_tiles.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/backward_params.hpp"

namespace tessella::cuda {

core::Cost forward_cost(const core::AttentionArguments& arguments, const ForwardTiles& tiles);
core::Cost standard_cost(const core::AttentionArguments& arguments, const ForwardTiles& tiles);
core::Cost flash_1_cost(const core::AttentionArguments& arguments, const ForwardTiles& tiles);

// extra_bytes: scratch. tile_q_of_dq: of a kernel of dQ alone; 0: key tiles add to dQ's sums.
core::Cost backward_cost(const core::AttentionArguments& arguments, const portable::BackwardSm80Config& config,
                         double extra_bytes, int32_t tile_q_of_dq = 0);
core::Cost standard_backward_cost(const core::AttentionArguments& arguments, const portable::BackwardSm80Config& config,
                                  double extra_bytes);

// Memory that the ladder's kernels keep.
double standard_bytes(const core::AttentionShape& shape, const ForwardTiles& tiles);
double flash_1_bytes(const core::AttentionShape& shape, const ForwardTiles& tiles);
double standard_backward_bytes(const core::AttentionShape& shape, const ForwardTiles& tiles);

}  // namespace tessella::cuda
