// What goes wrong in forward_sm90 first: a test each for its waits, its fences and what it computes, in seconds. Each
// names what it catches in mutations*.py.
#include <gtest/gtest.h>

#include "emulated_case.hpp"

namespace tessella::tests {
namespace {

// A head of 130 queries, two tiles of them with 128 rows, and 300 keys.
Case small(int64_t head_dim) {
  Case c = base(head_dim, head_dim);
  c.batch = c.heads_q = 1;
  c.seqlen_q = 130;
  return c;
}

// More tiles of keys than there are stages.
TEST(EmulatedQuick, Waits) {
  Case c = small(128);
  c.seqlen_kv = 900;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) expect_right(c, seed);
}

// Of queries: more than a block has slots for, of two tiles of keys each.
TEST(EmulatedQuick, ManyTiles) {
  Case c = small(128);
  c.heads_q = 6;
  c.seqlen_kv = 200;
  for (const uint64_t seed : {1, 2}) expect_right(c, seed);
}

TEST(EmulatedQuick, GrowingScores) {
  for (const double spread : {4.0, 300.0}) {  // 300: beyond what a maximum of the tiles before can be taken off
    Case c = small(128);
    c.seqlen_kv = 600;
    c.spread = spread;
    expect_right(c);
  }
}

// Of scores in the millions, which fp32 rounds, one has nearly all of its row: no other value may be in it.
TEST(EmulatedQuick, SaturatedRows) {
  Case c = small(128);
  c.seqlen_kv = 600;
  c.spread = 1e7;
  expect_right(c);
}

TEST(EmulatedQuick, Causal) {
  Case c = small(128);
  c.window_right = 0;
  expect_right(c);
}

TEST(EmulatedQuick, Ranges) {
  Case c = small(64);
  c.masked_nan = true;
  c.mask_region = 40;
  c.key_ranges = "1";
  expect_right(c);
  c.leftpad_kv = true;
  expect_right(c);
  c.key_ranges = "";
  c.query_ranges = "1";
  expect_right(c);
}

TEST(EmulatedQuick, Alibi) {
  Case c = small(128);
  c.alibi = "h";
  expect_right(c);
}

// Queries stay in shared memory, and rows of out overwrite them. Three whole tiles of keys: no warp waits for the
// others to clear values in the last one.
TEST(EmulatedQuick, Dropout) {
  Case c = small(128);
  c.dropout = 0.3;
  c.seqlen_kv = 3 * 112;
  for (const uint64_t seed : {1, 2, 3, 4}) expect_right(c, seed);
  c.dropout = 0.9999;  // 1 / (1 - p) is 10000, and what 7 of 65536 entries are scaled by 9362.3
  c.memory_seed = true;
  expect_right(c);
}

// NaN in values that nobody sees, in the last tile: no turn is waited for between their clearing and their product.
TEST(EmulatedQuick, UnseenValues) {
  Case c = small(128);
  c.masked_nan = true;
  c.causal_top_left = true;
  for (const uint64_t seed : {1, 2, 3, 4}) expect_right(c, seed);
}

// Sequences in a cache of slots, and what their last keys see of each other.
TEST(EmulatedQuick, DraftsInSlots) {
  Case c = small(128);
  c.batch = 3;
  c.cache_batch_idx = c.seqlens_kv = true;
  expect_right(c);
  c.draft_mask = "b";
  expect_right(c);
}

// The sign of a scale is the queries', in shared memory and on their way to registers.
TEST(EmulatedQuick, NegativeScale) {
  for (const int64_t head_dim : {64, 128}) {
    Case c = small(head_dim);
    c.scale = -0.1;
    for (const uint64_t seed : {1, 2, 3, 4}) expect_right(c, seed);
  }
}

// Three warpgroups, each of which skips the key tiles of the others' rows, and four query tiles a block: what a
// warpgroup's rows are rotates.
Case of_three_warpgroups() {
  Case c = small(64);
  c.heads_q = 4;
  c.seqlen_q = 570;
  c.seqlen_kv = 700;
  c.window_left = 90;
  c.window_right = 0;
  return c;
}
TEST(EmulatedQuick, SkippedTiles) {
  for (const uint64_t seed : {1, 2, 3}) expect_right(of_three_warpgroups(), seed);
}
TEST(EmulatedQuick, SkippedTilesOfAMap) {
  Case c = of_three_warpgroups();
  c.document = true;
  for (const uint64_t seed : {1, 2, 3}) expect_right(c, seed);
}

// Head dim 256: a tile of keys fewer than for either alone.
TEST(EmulatedQuick, SoftcapAndDropout) {
  for (const double spread : {0.5, 6.0}) {
    Case c = small(256);
    c.softcap = 30;
    c.dropout = 0.3;
    c.spread = spread;
    expect_right(c);
  }
}

// By its series, by tanh, and by both in one query tile.
TEST(EmulatedQuick, Softcap) {
  for (const double spread : {0.5, 2.0, 40.0}) {
    Case c = small(128);
    c.seqlen_kv = 600;
    c.softcap = 30;
    c.spread = spread;
    expect_right(c);
  }
}

}  // namespace
}  // namespace tessella::tests
