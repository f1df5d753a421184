// The passes over masks that are no interval (kernels/classify/classify.cuh): the step before a kernel that finds the
// classes of its tiles, and the map of a mask that is made before.
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

// Why a call with the map of a mask is not eligible, or "".
std::string too_large_map(const core::AttentionShape& shape);

// Bytes of the map of the call's mask.
int64_t mask_map_bytes(const core::Arguments& call);

}  // namespace tessella::cuda
