// What element masks, or a band that is not contiguous, show of a tile of scores.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

// No score, some, or all that the band leaves.
enum class TileClass : uint8_t { hidden = 0, partial = 1, full = 2 };

}  // namespace tessella::portable
