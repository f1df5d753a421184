// The step before a kernel whose masks are no interval: it writes the classes of the call's tiles
// (device/score/mask.hpp).
#pragma once

#include <functional>
#include <string>

#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/recipe.hpp"
#include "cuda/launch/tile_map.hpp"
#include "portable/forward_params.hpp"

namespace tessella::cuda {

// tiles: of the kernel. params: what the kernel is given, of the call's map.
Step classify_step(const ForwardTiles& tiles, const std::string& user_source,
                   std::function<portable::ForwardParams(const core::AttentionArguments& arguments, const TileMap& map,
                                                         const core::Workspace& workspace, const Concurrency& at_once)>
                       params);

}  // namespace tessella::cuda
