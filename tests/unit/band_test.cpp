// The band against its definition, key by key, and the two properties tiles rest on: monotone bounds.
#include "portable/band.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cases/random.hpp"

namespace tessella::tests {
namespace {

using portable::Band;

// Every part of the mask as it is worded in tessella.h.
bool defined_visible(const Band& b, int64_t i, int64_t j) {
  const int64_t at = i + b.seqlen_kv - b.seqlen_q;
  const auto chunk_of = [&](int64_t key) { return key / b.chunk; };
  const bool after_window = b.window_right >= 0 && j > at + b.window_right;
  const bool before_window = b.window_left >= 0 && j < at - b.window_left;
  const bool not_in_prefix_nor_causal = b.prefix >= 0 && j >= b.prefix && j > at;
  const bool above_diagonal = b.causal_top_left && j > i;
  const bool in_later_chunk = b.chunk > 0 && (at < 0 || chunk_of(j) > chunk_of(at));
  const bool in_earlier_chunk = b.chunk > 0 && at >= 0 && chunk_of(j) < chunk_of(at);
  if (after_window || not_in_prefix_nor_causal || above_diagonal || in_later_chunk) return false;
  return j < b.keep_first || (!before_window && !in_earlier_chunk);
}

Band random_band(Random& random) {
  Band b;
  b.seqlen_q = random.in(0, 12);
  b.seqlen_kv = random.in(0, 12);
  if (random.chance(0.4)) b.window_left = random.in(0, 6);
  if (random.chance(0.4)) b.window_right = random.in(0, 6);
  if (random.chance(0.3)) b.prefix = random.in(0, 14);
  if (random.chance(0.3)) b.chunk = random.in(1, 6);
  if (random.chance(0.3)) b.keep_first = random.in(1, 5);
  b.causal_top_left = random.chance(0.2);
  return b;
}

TEST(Band, IsWhatItsPartsSay) {
  Random random(1);
  for (int trial = 0; trial < 20000; ++trial) {
    const Band b = random_band(random);
    for (int64_t i = 0; i < b.seqlen_q; ++i) {
      for (int64_t j = 0; j < b.seqlen_kv; ++j) {
        ASSERT_EQ(b.visible(i, j), defined_visible(b, i, j))
            << "i=" << i << " j=" << j << " seqlen_q=" << b.seqlen_q << " seqlen_kv=" << b.seqlen_kv
            << " window=" << b.window_left << "," << b.window_right << " prefix=" << b.prefix << " chunk=" << b.chunk
            << " keep_first=" << b.keep_first << " top_left=" << b.causal_top_left;
      }
    }
  }
}

TEST(Band, BoundsNeverFallAndStayInside) {
  Random random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    const Band b = random_band(random);
    for (int64_t i = 0; i < b.seqlen_q; ++i) {
      ASSERT_LE(0, b.begin(i));
      ASSERT_LE(b.begin(i), b.end(i));
      ASSERT_LE(b.end(i), b.seqlen_kv);
      if (i == 0) continue;
      ASSERT_LE(b.begin(i - 1), b.begin(i));
      ASSERT_LE(b.end(i - 1), b.end(i));
    }
  }
}

TEST(Band, FullMeansEveryKey) {
  Random random(3);
  for (int trial = 0; trial < 5000; ++trial) {
    const Band b = random_band(random);
    if (!b.is_full()) continue;
    for (int64_t i = 0; i < b.seqlen_q; ++i) {
      ASSERT_EQ(b.begin(i), 0);
      ASSERT_EQ(b.end(i), b.seqlen_kv);
    }
  }
}

TEST(Band, CausalIsBottomRight) {
  const Band b{.seqlen_q = 2, .seqlen_kv = 3, .window_right = 0};
  EXPECT_EQ(b.end(0), 2);
  EXPECT_EQ(b.end(1), 3);
  const Band longer_q{.seqlen_q = 3, .seqlen_kv = 2, .window_right = 0};
  EXPECT_EQ(longer_q.end(0), 0);  // the first query stands before the first key
  EXPECT_EQ(longer_q.end(2), 2);
}

TEST(Band, PositionsDoNotOverflowForUnboundedWindows) {
  constexpr int64_t kLong = int64_t{1} << 31;
  const Band b{
      .seqlen_q = kLong, .seqlen_kv = kLong, .window_left = int64_t{1} << 40, .window_right = int64_t{1} << 40};
  EXPECT_EQ(b.begin(kLong - 1), 0);
  EXPECT_EQ(b.end(0), kLong);
}

}  // namespace
}  // namespace tessella::tests
