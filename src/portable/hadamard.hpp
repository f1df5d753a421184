// Incoherent processing (QuIP#, arXiv 2402.04396; FlashAttention-3, arXiv 2407.08608, section 3.3): a row times random
// signs, times an orthogonal Hadamard matrix. It spreads outliers over the columns before a row is quantised, and rows
// of q and k that have the same signs keep their products.
//
// A row of head_dim = 2^a * m columns, m odd, is m blocks of 2^a, each times the Walsh-Hadamard matrix H of that size,
// H[i][j] = (-1)^popcount(i & j), and times 2^(-a/2). The sums are butterflies (x, y) -> (x + y, x - y) of columns that
// are 1, 2, 4, ... apart, in this order, and the factor comes last: there is no product to contract with a sum, so that
// every compiler and device gives the same bits.
#pragma once

#include "portable/dropout.hpp"
#include "portable/float16.hpp"

namespace tessella::portable {

// Columns of a block.
constexpr int64_t hadamard_block(int64_t head_dim) { return head_dim & -head_dim; }

// The inverse root of a block's size.
constexpr float hadamard_factor(int64_t block) {
  float factor = 1;
  for (; block >= 4; block /= 4) factor *= 0.5f;
  return block == 2 ? factor * 0.707106781f : factor;
}

// The signs of columns [32 i, 32 i + 32), 1 = negative, the first in the lowest bit: the same for every row.
constexpr uint32_t hadamard_signs(uint64_t seed, uint32_t i) {
  constexpr uint32_t kStream = 0x48616461;  // beside the counters of dropout
  const Random4 random =
      philox4x32_7({{i / 4, 0, 0, kStream}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  // Not by an index, which would put the words into a GPU thread's memory.
  const uint32_t even = i % 4 < 2 ? random.word[0] : random.word[2], odd = i % 4 < 2 ? random.word[1] : random.word[3];
  return i % 2 == 0 ? even : odd;
}

inline float with_sign(float x, uint32_t signs, int32_t bit) {
  return bits_float(float_bits(x) ^ (signs >> bit & 1) << 31);
}

// Rows on the host. Signs come before the matrix, and in the inverse, as H is symmetric, after it.
inline void sign_row(float* row, int64_t head_dim, uint64_t seed) {
  for (int64_t first = 0; first < head_dim; first += 32) {
    const uint32_t signs = hadamard_signs(seed, static_cast<uint32_t>(first / 32));
    for (int32_t c = 0; c < 32 && first + c < head_dim; ++c) row[first + c] = with_sign(row[first + c], signs, c);
  }
}
inline void hadamard_row(float* row, int64_t head_dim) {
  const int64_t block = hadamard_block(head_dim);
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (int64_t first = 0; first < head_dim; first += 2 * apart) {
      for (int64_t c = first; c < first + apart; ++c) {
        const float x = row[c], y = row[c + apart];
        row[c] = x + y;
        row[c + apart] = x - y;
      }
    }
  }
  const float factor = hadamard_factor(block);
  for (int64_t c = 0; c < head_dim; ++c) row[c] *= factor;
}

}  // namespace tessella::portable
