// What Hopper's copy engine and its multiprocessors hold any kernel to.
#pragma once

#include "portable/element.hpp"

namespace tessella::portable {

// Describes a tensor to Hopper's copy engine (CUtensorMap).
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

// Columns of a box: 128 bytes a row, which is what the swizzle takes.
constexpr int32_t box_columns(Element element) { return 128 / size_bytes(element); }
inline constexpr int32_t kSwizzleRows = 8;    // after which the swizzle repeats: what boxes begin at multiples of
inline constexpr int32_t kBarrierBytes = 16;  // of a slot or stage: when full, when empty
inline constexpr int32_t kHopperSharedBytes = 227 * 1024;
inline constexpr int32_t kHopperLongest = 1 << 29;  // queries or keys: sums of three fit in 32 bits

}  // namespace tessella::portable
