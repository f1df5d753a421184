// How decoding's k and v are stored: as q is, or in 8 or 4 bits, with scales or without.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

enum class CacheElement : int32_t { as_q, f8e4m3, i8, i4 };

}  // namespace tessella::portable
