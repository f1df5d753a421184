// Parameters of a forward kernel on a GPU. The host fills them from AttentionArguments
// (cuda/launch/forward_arguments.hpp).
#pragma once

#include "portable/arrays_params.hpp"
#include "portable/inputs_params.hpp"
#include "portable/masks_params.hpp"
#include "portable/output_params.hpp"
#include "portable/scores_params.hpp"
#include "portable/sequences_params.hpp"
#include "portable/tile_map_params.hpp"
#include "portable/tiling_params.hpp"

namespace tessella::portable {

struct ForwardParams {
  InputsParams inputs;
  SequencesParams sequences;
  ScoresParams scores;
  MasksParams masks;
  ArraysParams arrays;
  TileMapParams tile_map;
  OutputParams output;
  TilingParams tiling;
};

}  // namespace tessella::portable
