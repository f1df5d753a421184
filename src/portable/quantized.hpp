// The storage types of quantized cache rows.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

// none: as q, or as the rows come that are appended.
enum class Quantized : int32_t { none, f8e4m3fn, i8, i4 };

}  // namespace tessella::portable
