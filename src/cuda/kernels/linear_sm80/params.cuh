// linear_sm80: its configuration, and its only argument.
#pragma once

#include "portable/linear_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kLinearSm80Warps = 8;  // of a block; they split the columns of x and w
inline constexpr int32_t kMostRowBlocks = 8;    // of a block: 64 rows of x

struct LinearSm80Config {
  Element element = Element::bf16;  // of x
  Element weight = Element::bf16;   // of w: the same, or 8 bits
  bool vectors = false;             // rows are loaded in pieces of 16 bytes
  int32_t row_blocks = 1;           // of 8 rows of x, that a block has
  int32_t w_blocks = 1;             // of 16 rows of w; with SwiGLU 2
  bool operator==(const LinearSm80Config&) const = default;
};

// Sums of a block of both, as the lanes of a warp have them.
inline constexpr int32_t kLinearSumBytes = 32 * 4 * static_cast<int32_t>(sizeof(float));

constexpr int32_t linear_blocks(const LinearSm80Config& c) { return c.row_blocks * c.w_blocks; }
constexpr int32_t shared_bytes(const LinearSm80Config& c) {
  return kLinearSm80Warps * linear_blocks(c) * kLinearSumBytes;
}
// What registers allow: sums, and the pieces of w and x that are under way.
constexpr int32_t blocks_per_sm(const LinearSm80Config& c) { return linear_blocks(c) >= 8 ? 1 : 2; }

struct LinearSm80Params {
  LinearOut out;
  LinearOperands in;
  int32_t row_tiles;  // blocks that have the same rows of w
};

}  // namespace tessella::portable
