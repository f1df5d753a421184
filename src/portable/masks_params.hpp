// The masks of a call, as a GPU kernel's parameters: the bounds of the band (portable/band.hpp), and masks of elements.
#pragma once

#include "portable/element_masks.hpp"

namespace tessella::portable {

struct MasksParams {
  int64_t window_left, window_right, chunk;
  int32_t keep_first;
  int32_t causal_top_left;
  ElementMasks elements;
};

}  // namespace tessella::portable
