// The kernel parameters of forward kernels on a GPU, from a call's arguments.
#pragma once

#include <limits>
#include <string>

#include "cuda/driver/gpus.hpp"
#include "cuda/launch/call_params.hpp"
#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/sections.hpp"
#include "cuda/launch/tile_map.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/forward_params.hpp"

namespace tessella::cuda {

// longest: sequence that the kernel takes.
portable::ForwardParams forward_params(const core::AttentionArguments& arguments, const ForwardTiles& tiles,
                                       const TileMap& map, const portable::TileMapParams& tile_map,
                                       const Concurrency& at_once,
                                       int64_t longest = std::numeric_limits<int64_t>::max());

inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Why the GPU cannot run a kernel whose blocks use this much shared memory, or "".
std::string lacks(const core::AttentionShape& shape, int32_t shared_bytes, const DeviceInfo& device);

// Why the GPU cannot run a kernel for Hopper, or "".
std::string lacks_hopper(const DeviceInfo& device);

// Why a call makes more tiles than a grid has blocks, or "".
std::string too_large(const core::AttentionShape& shape, const MapTiles& tiles);

inline constexpr int64_t kMaxBlocks = 0x7FFFFFFF;  // of a grid along x
// Blocks of forward_sm80's grid along x; may be more than a grid holds.
int64_t forward_blocks(const core::AttentionShape& shape, const TileMap& map);
// True if the call has any rows to compute; otherwise nothing is queued.
bool has_rows(const core::AttentionShape& shape, const TileMap& map);

}  // namespace tessella::cuda
