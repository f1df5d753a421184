// cuda.forward_sm90 where query tiles meet a key tile or two: its warps are at different query tiles then, and whatever
// one of them hands to another is about to be taken again. TESSELLA_TEST_SEEDS (4): orders of threads of each case.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "emulated_case.hpp"

namespace tessella::tests {
namespace {

Case short_rows(int64_t head_dim, int64_t batch, int64_t heads, int64_t seqlen) {
  Case c = base(head_dim, head_dim);
  c.batch = batch;
  c.heads_q = c.heads_kv = heads;
  c.seqlen_q = c.seqlen_kv = seqlen;
  return c;
}

void expect_right_in_any_order(const Case& c) {
  const char* seeds = std::getenv("TESSELLA_TEST_SEEDS");
  const int last = seeds == nullptr ? 4 : std::atoi(seeds);
  ASSERT_GT(last, 0) << "TESSELLA_TEST_SEEDS";
  for (int seed = 1; seed <= last; ++seed) {
    expect_right(c, static_cast<uint64_t>(seed));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(EmulatedShortRows, OneKeyTile) {
  for (const int64_t head_dim : {64, 96, 128, 192, 256}) expect_right_in_any_order(short_rows(head_dim, 8, 1, 60));
}

TEST(EmulatedShortRows, SeveralHeads) { expect_right_in_any_order(short_rows(256, 3, 2, 100)); }

TEST(EmulatedShortRows, Causal) {
  for (const int64_t head_dim : {64, 256}) {
    Case c = short_rows(head_dim, 4, 1, 200);
    c.window_right = 0;
    expect_right_in_any_order(c);
  }
}

TEST(EmulatedShortRows, Sinks) {
  Case c = short_rows(256, 8, 1, 60);
  c.sink = true;
  expect_right_in_any_order(c);
}

// Three warpgroups.
TEST(EmulatedShortRows, TilesForLongRows) {
  Case c = short_rows(128, 8, 1, 60);
  c.max_seqlen = 8192;
  expect_right_in_any_order(c);
  c.seqlen_q = c.seqlen_kv = 200;
  c.batch = 4;
  c.window_right = 0;
  expect_right_in_any_order(c);
}

// Two warpgroups and 64 keys, where several things are asked for at once.
TEST(EmulatedShortRows, MasksAndScores) {
  for (const int64_t head_dim : {192, 256}) {
    Case c = short_rows(head_dim, 6, 1, 100);
    c.window_right = 0;
    c.softcap = 2;
    expect_right_in_any_order(c);
  }
}

TEST(EmulatedShortRows, MasksOfElements) {
  for (const int64_t head_dim : {64, 256}) {
    Case c = short_rows(head_dim, 6, 1, 130);
    c.dense = "bhqk";
    c.mask_region = 40;
    expect_right_in_any_order(c);
  }
}

TEST(EmulatedShortRows, BatchInvariant) {
  Case c = short_rows(256, 8, 1, 60);
  c.batch_invariant = true;
  expect_right_in_any_order(c);
}

}  // namespace
}  // namespace tessella::tests
