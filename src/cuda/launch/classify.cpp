#include "cuda/launch/classify.hpp"

#include "cuda/compile/expression.hpp"
#include "portable/classify.hpp"

namespace tessella::cuda {

Program classify_program(const ForwardTiles& tiles, const std::string& user_text) {
  return {.header = "cuda/device/score/mask.hpp",
          .expression = expression("classify_tiles", "ClassifyConfig",
                                   portable::classify_config(tiles.score, tiles.tile_q, tiles.tile_kv)),
          .user_text = user_text};
}

}  // namespace tessella::cuda
