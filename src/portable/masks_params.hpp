// The masks of a call, as a GPU kernel's parameters: the bounds of the band (portable/band.hpp), and masks of elements.
#pragma once

#include "portable/divisor.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

struct MasksParams {
  int64_t window_left, window_right, chunk;
  int32_t keep_first;
  int32_t causal_top_left;
  TableParams document_q, document_kv;  // i32
  ScoreOperandParams dense_mask, block_map, draft_mask;
  Divisor block_map_q, block_map_kv;  // queries and keys of one entry of block_map
};

}  // namespace tessella::portable
