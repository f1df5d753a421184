// linear_gemv: its configuration, and its only argument.
#pragma once

#include "portable/linear_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kLinearGemvWarps = 8;  // of a block
inline constexpr int32_t kMostGemvRows = 8;     // of x at once: more sums than registers hold

struct LinearGemvConfig {
  Element element = Element::bf16;  // of x
  Element weight = Element::bf16;   // of w: the same, or 8 bits
  bool vectors = false;             // rows are loaded in pieces of 16 bytes
  int32_t rows = 1;                 // of x, that a warp has at once
  bool operator==(const LinearGemvConfig&) const = default;
};

// Rows of w that a warp has. A piece of x serves all of them, which counts where rows of x are many.
constexpr int32_t w_rows(const LinearGemvConfig& c) { return c.rows > 2 ? 4 : 2; }
// Pieces of each row of w that a lane loads before it multiplies the first.
constexpr int32_t pieces_ahead(const LinearGemvConfig& c) { return c.rows > 2 ? 2 : 4; }
// What registers allow.
constexpr int32_t blocks_per_sm(const LinearGemvConfig& c) { return c.rows > 2 ? 2 : c.rows == 2 ? 3 : 4; }

struct LinearGemvParams {
  LinearOut out;
  LinearOperands in;
  int32_t row_groups;  // blocks that have the same rows of w
};

}  // namespace tessella::portable
