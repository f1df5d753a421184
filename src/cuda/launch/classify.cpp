#include "cuda/launch/classify.hpp"

#include <utility>

#include "cuda/compile/expression.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "portable/classify.hpp"

namespace tessella::cuda {
namespace {

Program classify_program(const ForwardTiles& tiles, const std::string& user_source) {
  return {.header = "cuda/device/score/mask.hpp",
          .expression = expression("classify_tiles", "ClassifyConfig",
                                   portable::classify_config(tiles.score, tiles.tile_q, tiles.tile_kv)),
          .user_source = user_source};
}

}  // namespace

Step classify_step(const ForwardTiles& tiles, const std::string& user_source,
                   std::function<portable::ForwardParams(const core::AttentionArguments&, const TileMap&,
                                                         const core::Workspace&, const Concurrency&)>
                       params) {
  return {.program = classify_program(tiles, user_source),
          .threads = portable::kClassifyWarps * 32,
          .launch = [tiles, params = std::move(params)](const core::Shape&, const core::Arguments& call,
                                                        const Concurrency& at_once,
                                                        const core::Workspace& workspace) -> std::optional<Launch> {
            const core::AttentionArguments& arguments = core::attention(call);
            const TileMap map = tile_map(arguments, tiles);
            if (map.bytes() == 0 || !has_rows(arguments, map)) return std::nullopt;
            return Launch{{map.classify_blocks(), 1, 1}, Parameters(params(arguments, map, workspace, at_once))};
          }};
}

}  // namespace tessella::cuda
