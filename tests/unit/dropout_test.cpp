// Dropout's bits: the generator against its authors' vectors, the layout of a block, a table of bits that must never
// change, and rates.
#include "portable/dropout.hpp"

#include <gtest/gtest.h>

#include <bit>
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

constexpr uint32_t kHalf = 32768;

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
      const uint32_t value = dropout.bits(3, 4, 5, r * 4 + c).word[word] >> (16 * half) & 0xFFFF;
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
  const auto rows = [](uint64_t offset) {
    const Dropout dropout{.seed = 0x0123456789abcdef, .offset = offset, .threshold = kHalf};
    std::string bits;
    for (int64_t i = 14; i < 18; ++i) {
      for (int64_t j = 0; j < 32; ++j) bits += dropout.keeps(7, i, j) ? '1' : '0';
      bits += '\n';
    }
    return bits;
  };
  EXPECT_EQ(rows(0x76543210),
            "00110100000011111010001011000111\n"
            "01110100010011110101100001101010\n"
            "10101011100000110011011001010101\n"
            "00000000001111010000001011100111\n");
  EXPECT_EQ(rows(0xfedcba9876543210),
            "00010110110100110100100011000111\n"
            "01001010101111101100110110001000\n"
            "00010100011011010000101010001110\n"
            "10110000111101011001011110110100\n");
}

TEST(Dropout, DropsItsShareInEveryHead) {
  constexpr int kRows = 256;
  for (const double probability : {0.1, 0.5, 0.9}) {
    for (const uint64_t head : {0u, 1u, 77u}) {
      const Dropout dropout{
          .seed = 5, .offset = 0, .threshold = Dropout::threshold_of(static_cast<float>(probability))};
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

// Rounding reaches neither 0 nor 1, and what is kept is scaled by its own part of 65536.
TEST(Dropout, ThresholdsAndScales) {
  EXPECT_EQ(Dropout::threshold_of(0), 0u);
  EXPECT_EQ(Dropout{}.keep_scale(), 1);
  EXPECT_EQ(Dropout::threshold_of(1e-30f), 1u);
  EXPECT_EQ(Dropout::threshold_of(1e-6f), 1u);
  EXPECT_EQ(Dropout::threshold_of(1.49f / 65536), 1u);
  EXPECT_EQ(Dropout::threshold_of(1.5f / 65536), 2u);
  EXPECT_EQ(Dropout::threshold_of(0.1f), 6554u);
  EXPECT_EQ(Dropout::threshold_of(0.25f), 16384u);
  EXPECT_EQ(Dropout::threshold_of(0.99999f), 65535u);
  EXPECT_EQ(Dropout::threshold_of(0.9999924f), 65535u);
  EXPECT_EQ(Dropout::threshold_of(std::nextafter(1.0f, 0.0f)), 65535u);
  for (uint32_t threshold = 1; threshold < 65536; ++threshold) {
    const Dropout dropout{.threshold = threshold};
    ASSERT_NEAR(dropout.keep_scale() * (65536 - threshold), 65536, 1e-9);
    ASSERT_EQ(Dropout::threshold_of(static_cast<float>(threshold) / 65536), threshold);
  }
}

// Over 2^25 entries: within four standard deviations.
TEST(Dropout, TheMeanWeightIsOne) {
  constexpr int64_t kBlocks = 1 << 20;
  for (const float probability : {1e-6f, 1e-5f, 0.1f, 0.5f, 0.99999f, 0.9999999f}) {
    const Dropout dropout{.seed = 17, .threshold = Dropout::threshold_of(probability)};
    int64_t kept = 0;
    for (int64_t block = 0; block < kBlocks; ++block) {
      for (int c = 0; c < 4; ++c) {
        for (const uint32_t word : dropout.bits(0, 0, block, c).word) {
          kept += ((word & 0xFFFF) >= dropout.threshold ? 1 : 0) + (word >> 16 >= dropout.threshold ? 1 : 0);
        }
      }
    }
    constexpr int64_t kEntries = kBlocks * 32;
    EXPECT_GT(kept, 0) << probability;
    EXPECT_LT(kept, kEntries) << probability;
    const double deviation = std::sqrt((dropout.keep_scale() - 1) / kEntries);
    EXPECT_NEAR(static_cast<double>(kept) * dropout.keep_scale() / kEntries, 1, 4 * deviation) << probability;
  }
}

// The part of 64 x 64 entries that both keep or both drop, b's keys so many further.
double agreement(const Dropout& a, uint64_t head_a, const Dropout& b, uint64_t head_b, int64_t shift) {
  int equal = 0;
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 64; ++j) equal += a.keeps(head_a, i, j) == b.keeps(head_b, i, j + shift) ? 1 : 0;
  }
  return equal / 4096.0;
}

TEST(Dropout, SeedAndOffsetAreApart) {
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t value = uint64_t{1} << bit;
    EXPECT_NEAR(agreement({value, 0, kHalf}, 0, {0, value, kHalf}, 0, 0), 0.5, 0.04) << bit;
    EXPECT_NEAR(agreement({value, value, kHalf}, 0, {0, 0, kHalf}, 0, 0), 0.5, 0.04) << bit;
    EXPECT_NEAR(agreement({7, value, kHalf}, 0, {7, 0, kHalf}, 0, 0), 0.5, 0.04) << bit;
  }
}

TEST(Dropout, EachBitOfTheOffsetChangesHalfOfTheBits) {
  constexpr int kCalls = 4096;
  for (int bit = 0; bit < 64; ++bit) {
    const Dropout base{.seed = 1}, other{.seed = 1, .offset = uint64_t{1} << bit};
    int changed = 0;
    for (int call = 0; call < kCalls; ++call) {
      const Random4 one = base.bits(0, call / 64, call % 64, 0), two = other.bits(0, call / 64, call % 64, 0);
      for (int word = 0; word < 4; ++word) changed += std::popcount(one.word[word] ^ two.word[word]);
    }
    EXPECT_NEAR(changed / (128.0 * kCalls), 0.5, 0.5 * 4.5 / std::sqrt(128.0 * kCalls)) << bit;
  }
}

TEST(Dropout, SeedOffsetHeadAndPlaceAllMatter) {
  const Dropout base{.seed = 1, .offset = 2, .threshold = kHalf};
  for (const Dropout& other : {Dropout{2, 2, kHalf}, Dropout{1, 3, kHalf}, Dropout{1 + (uint64_t{1} << 32), 2, kHalf},
                               Dropout{1, 2 + (uint64_t{1} << 32), kHalf}}) {
    EXPECT_NEAR(agreement(base, 0, other, 0, 0), 0.5, 0.04);
  }
  EXPECT_NEAR(agreement(base, 0, base, 1, 0), 0.5, 0.04);
  EXPECT_NEAR(agreement(base, 0, base, 0, 16), 0.5, 0.04);
  EXPECT_EQ(agreement(base, 0, base, 0, 0), 1);
}

}  // namespace
}  // namespace tessella::tests
