#include "cuda/launch/classify.hpp"

#include <utility>

#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_config.hpp"

namespace tessella::cuda {

Step classify_step(const portable::ForwardConfig& config, const std::string& user_text,
                   std::function<portable::ForwardParams(const core::Problem&, const TileMap&, const core::Workspace&,
                                                         const Concurrency&)>
                       params) {
  return {.program = classify_program(config, user_text),
          .threads = portable::kClassifyWarps * 32,
          .launch = [config, params = std::move(params)](const core::Problem&, const core::Problem& arguments,
                                                         const Concurrency& at_once,
                                                         const core::Workspace& workspace) -> std::optional<Launch> {
            const TileMap map = tile_map(arguments, config);
            if (map.bytes() == 0 || !has_rows(arguments, map)) return std::nullopt;
            return Launch{{map.classify_blocks(), 1, 1}, Parameters(params(arguments, map, workspace, at_once))};
          }};
}

}  // namespace tessella::cuda
