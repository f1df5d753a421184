#include "cuda/kernels/classify/classify.hpp"

#include <utility>

#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/kernels/classify/params.cuh"
#include "cuda/launch/forward_arguments.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::Feature;
using portable::ClassifyConfig;

// The tiles by which a mask's map is made, whatever kernel reads it.
constexpr MapTiles kMapTiles(portable::MaskLevel::bits, portable::kMapQueries, portable::kMapKeys);

int64_t bytes_of_map(const TileMap& map, const core::AttentionShape& p) {
  constexpr int64_t kWordBytes = 2 * sizeof(uint32_t);
  return map.maps() * map.tiles_q * ((p.seqlen_kv + 31) / 32) * kWordBytes;
}

portable::ClassifyParams classify_params(const AttentionArguments& p, const TileMap& map,
                                         const portable::TileMapParams& tile_map) {
  return {.sequences = sequences_params(p),
          .masks = masks_params(p),
          .arrays = arrays_params(p),
          .tile_map = tile_map,
          .tiles_q = narrow(map.tiles_q),
          .mask_map = static_cast<uint32_t*>(const_cast<void*>(p.mask_map))};
}

// A block for each tile of the call's tile map.
Step pass(const char* kernel, const ClassifyConfig& config, const MapTiles& tiles, const std::string& user_source,
          TileMapParamsOf tile_map_of) {
  return {.program = {.header = "cuda/kernels/classify/classify.cuh",
                      .expression = expression(kernel, config),
                      .user_source = user_source},
          .threads = config.has_map ? 32u : portable::kClassifyWarps * 32u,
          .shared_bytes = portable::kClassifyBytes,
          .launch = [tiles, tile_map_of = std::move(tile_map_of)](
                        const core::Shape&, const core::Arguments& call, const Concurrency&,
                        const core::Workspace& workspace) -> std::optional<Launch> {
            const AttentionArguments& arguments = core::attention(call);
            const TileMap map = tile_map(arguments, tiles);
            if (map.bytes() == 0 || !has_rows(arguments, map)) return std::nullopt;
            return Launch{{static_cast<unsigned>(map.bytes()), 1, 1},
                          Parameters(classify_params(arguments, map, tile_map_of(arguments, map, workspace)))};
          }};
}

}  // namespace

void add_mask_passes(Recipe& recipe, const core::AttentionShape& bounds, const ForwardTiles& tiles,
                     const std::string& user_source, TileMapParamsOf tile_map_of) {
  if (tiles.score.mask != portable::MaskLevel::bits) return;
  const bool has_map = bounds.features.has(Feature::mask_map);
  ClassifyConfig config = portable::classify_config(tiles.score, tiles.tile_q, tiles.tile_kv);
  if (has_map) {
    const ClassifyConfig making = portable::classify_config(tiles.score, kMapTiles.tile_q, kMapTiles.tile_kv);
    recipe.made_bytes = bytes_of_map(largest_tile_map(bounds, kMapTiles), bounds);
    recipe.made_before.push_back(pass("map_mask", making, kMapTiles, user_source,
                                      [](const AttentionArguments&, const TileMap& map, const core::Workspace&) {
                                        return tile_map_params(map, nullptr, nullptr);
                                      }));
    config.masks = {.mask = portable::MaskLevel::bits};
    config.has_map = true;
  }
  recipe.steps.push_back(
      pass("classify_tiles", config, tiles, has_map ? std::string() : user_source, std::move(tile_map_of)));
}

std::string too_large_map(const core::AttentionShape& p) {
  return p.features.has(Feature::mask_map) ? too_large(p, kMapTiles) : "";
}

int64_t mask_map_bytes(const core::Arguments& call) {
  const AttentionArguments& arguments = core::attention(call);
  return bytes_of_map(tile_map(arguments, kMapTiles), arguments);
}

}  // namespace tessella::cuda
