// The dropout mask as a pure function of (seed, offset, batch, head, query, key), the same bits on every backend.
//
// Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The score matrix
// of one head is cut into 16 x 16 blocks. One call gives 128 bits, 16 for each of the 8 entries
// queries {r, r+8} x keys {2c, 2c+1, 2c+8, 2c+9} of a block, r in [0, 8), c in [0, 4): the accumulator fragment of
// the GPU's 16-bit matrix instruction. Word w of the result holds, low half first, keys
//   w=0: (r, 2c) (r, 2c+1)   w=1: (r+8, 2c) (r+8, 2c+1)   w=2: (r, 2c+8) (r, 2c+9)   w=3: (r+8, 2c+8) (r+8, 2c+9).
//
// Beside the entry Philox has 96 bits for the 128 of seed and offset: two words of key and the counter's last word. The
// seed is the key, the offset's low word is the counter's. The offset's high word joins both, times an odd constant in
// the counter. So pairs of seed and offset differ if their seeds, their offsets or their offsets' low words are equal;
// other pairs meet as seldom as random numbers do.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

struct Random4 {
  uint32_t word[4];
};

constexpr Random4 philox4x32_7(Random4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 7; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

struct Dropout {
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint32_t threshold = 0;  // an entry is dropped iff its 16 bits are below this

  // p * 65536, rounded; a p above 0 drops at least one entry of 65536, and a p below 1 keeps at least one.
  static constexpr uint32_t threshold_of(float probability) {
    if (probability <= 0) return 0;
    const double scaled = static_cast<double>(probability) * 65536;
    const auto whole = static_cast<uint32_t>(scaled);
    const uint32_t rounded = scaled - whole >= 0.5 ? whole + 1 : whole;
    return rounded < 1 ? 1 : rounded > 65535 ? 65535 : rounded;
  }

  // The factor on entries that are not dropped: the inverse of their probability, so that the mean weight is 1.
  constexpr double keep_scale() const { return 65536.0 / (65536 - threshold); }

  // Philox's key, and the last word of its counter.
  constexpr uint32_t key0() const { return static_cast<uint32_t>(seed); }
  constexpr uint32_t key1() const { return static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32); }
  constexpr uint32_t counter3() const {
    return static_cast<uint32_t>(offset) + static_cast<uint32_t>(offset >> 32) * 0x9FB21C65;
  }

  // The bits of the 8 entries of lane 4 r + c of block (i / 16, j / 16); head_idx = batch_idx * heads_q + head.
  constexpr Random4 bits(uint64_t head_idx, int64_t block_q, int64_t block_kv, int lane) const {
    const Random4 counter{{static_cast<uint32_t>(block_kv * 32 + lane), static_cast<uint32_t>(block_q),
                           static_cast<uint32_t>(head_idx), counter3()}};
    return philox4x32_7(counter, key0(), key1());
  }

  constexpr bool keeps(uint64_t head_idx, int64_t i, int64_t j) const {
    const int row = static_cast<int>(i & 15);
    const int col = static_cast<int>(j & 15);
    const Random4 random = bits(head_idx, i >> 4, j >> 4, (row & 7) * 4 + ((col & 7) >> 1));
    const uint32_t near = row < 8 ? random.word[0] : random.word[1], far = row < 8 ? random.word[2] : random.word[3];
    const uint32_t word = col < 8 ? near : far;
    return (col & 1 ? word >> 16 : word & 0xFFFF) >= threshold;
  }
};

}  // namespace tessella::portable
