// The passes over masks that are no interval (kernels/classify/classify.cuh): the step before a kernel that finds the
// classes of its tiles, and the schedule of such a call, the map of its mask.
#pragma once

#include <functional>
#include <string>

#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/recipe.hpp"
#include "cuda/launch/tile_map.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::cuda {

// Where a kernel reads the call's tile map.
using TileMapParamsOf = std::function<portable::TileMapParams(const core::AttentionArguments& arguments,
                                                              const TileMap& map, const core::Workspace& workspace)>;

// Adds the passes of a kernel with these tiles to its recipe, if the call has such masks.
void add_mask_passes(Recipe& recipe, const core::AttentionShape& bounds, const ForwardTiles& tiles,
                     const std::string& user_source, TileMapParamsOf tile_map_of);

// Why a call with a schedule that is no map of a mask, or with too large a one, is not eligible, or "".
std::string no_mask_map(const core::AttentionShape& shape);

// Bytes of the map of the call's mask, which is its schedule.
int64_t mask_map_bytes(const core::Arguments& call);

}  // namespace tessella::cuda
