// How keys and values are stored in a cache: as q is, and the rows that an append brings, or in 8 or 4 bits, with
// scales or without.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

enum class CacheElement : int32_t { as_q, f8e4m3, i8, i4 };

}  // namespace tessella::portable
