// Dropout's bits: the generator against its authors' vectors, the layout of a block, a table of bits that must never
// change, and rates.
#include "portable/dropout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>

namespace tessella::tests {
namespace {

using portable::Dropout;
using portable::Random4;

void expect_words(const Random4& got, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  EXPECT_EQ(got.word[0], w0);
  EXPECT_EQ(got.word[1], w1);
  EXPECT_EQ(got.word[2], w2);
  EXPECT_EQ(got.word[3], w3);
}

// Random123's kat_vectors, lines "philox4x32 7".
TEST(Philox, KnownAnswers) {
  expect_words(portable::philox4x32_7({{0, 0, 0, 0}}, 0, 0), 0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48);
  expect_words(portable::philox4x32_7({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), 0x5207ddc2, 0x45165e59, 0x4d8ee751,
               0x8c52f662);
  expect_words(portable::philox4x32_7({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a);
}

// Every entry of a 16 x 16 block has 16 bits of its own.
TEST(Dropout, BlockUsesEveryBitsOnce) {
  std::set<std::tuple<int, int, int, int>> halves;  // r, c, word, half
  const Dropout dropout{.seed = 11, .offset = 22, .threshold = 1};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      const int r = i % 8;
      const int c = j % 8 / 2;
      const int word = i / 8 + j / 8 * 2;
      const int half = j % 2;
      halves.insert({r, c, word, half});
      const uint32_t value = dropout.bits(3, 4, 5, r, c).word[word] >> (16 * half) & 0xFFFF;
      for (const uint32_t threshold : {value, value + 1}) {
        const Dropout at{.seed = 11, .offset = 22, .threshold = threshold};
        EXPECT_EQ(at.keeps(3, 4 * 16 + i, 5 * 16 + j), value >= threshold);
      }
    }
  }
  EXPECT_EQ(halves.size(), 256u);
}

// What a saved model's run drew must be drawn again by every later version and every backend.
TEST(Dropout, BitsAreFrozen) {
  const Dropout dropout{.seed = 0x0123456789abcdef, .offset = 0xfedcba9876543210, .threshold = 32768};
  std::string rows;
  for (int64_t i = 14; i < 18; ++i) {
    for (int64_t j = 0; j < 32; ++j) rows += dropout.keeps(7, i, j) ? '1' : '0';
    rows += '\n';
  }
  EXPECT_EQ(rows,
            "11101010000010010011011000011111\n"
            "11000011100000011011000100110000\n"
            "00001101001111010010111111000100\n"
            "10110010000110000101101000100011\n");
}

TEST(Dropout, DropsItsShareInEveryHead) {
  constexpr int kRows = 256;
  for (const double probability : {0.1, 0.5, 0.9}) {
    for (const uint64_t head : {0u, 1u, 77u}) {
      const Dropout dropout{
          .seed = 5, .offset = 0, .threshold = static_cast<uint32_t>(std::lround(probability * 65536))};
      int dropped = 0;
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kRows; ++j) dropped += dropout.keeps(head, i, j) ? 0 : 1;
      }
      const double expected = probability * kRows * kRows;
      const double deviation = std::sqrt(expected * (1 - probability));
      EXPECT_NEAR(dropped, expected, 5 * deviation);
    }
  }
}

TEST(Dropout, SeedOffsetHeadAndPlaceAllMatter) {
  const auto agreement = [](const Dropout& a, uint64_t head_a, const Dropout& b, uint64_t head_b, int64_t shift) {
    int equal = 0;
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < 64; ++j) equal += a.keeps(head_a, i, j) == b.keeps(head_b, i, j + shift) ? 1 : 0;
    }
    return equal / 4096.0;
  };
  const Dropout base{.seed = 1, .offset = 2, .threshold = 32768};
  for (const Dropout& other : {Dropout{2, 2, 32768}, Dropout{1, 3, 32768}, Dropout{1 + (uint64_t{1} << 32), 2, 32768},
                               Dropout{1, 2 + (uint64_t{1} << 32), 32768}}) {
    EXPECT_NEAR(agreement(base, 0, other, 0, 0), 0.5, 0.04);
  }
  EXPECT_NEAR(agreement(base, 0, base, 1, 0), 0.5, 0.04);
  EXPECT_NEAR(agreement(base, 0, base, 0, 16), 0.5, 0.04);
  EXPECT_EQ(agreement(base, 0, base, 0, 0), 1);
}

}  // namespace
}  // namespace tessella::tests
