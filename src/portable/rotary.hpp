// Rotary position embedding (RoFormer, arXiv 2104.09864, section 3.2.2): pairs of columns of a row of q or k are turned
// by angles of the row's position, of which the caller gives cosines and sines.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

template <class Real>
struct Rotated {
  Real first, second;
};
template <class Real>
constexpr Rotated<Real> rotate(Real first, Real second, Real cos, Real sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

// The columns that angle j turns: neighbours (GPT-J), or a column of each half of those that are rotated (GPT-NeoX).
constexpr int64_t first_column(int64_t j, bool is_interleaved) { return is_interleaved ? 2 * j : j; }
constexpr int64_t second_column(int64_t j, int64_t rotary_dim, bool is_interleaved) {
  return is_interleaved ? 2 * j + 1 : j + rotary_dim / 2;
}

}  // namespace tessella::portable
