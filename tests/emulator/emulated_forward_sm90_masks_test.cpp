// cuda.forward_sm90 in the emulator with masks of elements, drafts' among them.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "emulated_case.hpp"

namespace tessella::tests {
namespace {

class EmulatedMasks : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, EmulatedMasks,
                         testing::Values(std::pair{64, 64}, std::pair{128, 128}, std::pair{192, 128},
                                         std::pair{256, 256}));

TEST_P(EmulatedMasks, OneAndAllTogether) {
  const auto [qk, v] = GetParam();
  const bool is_usual = qk <= 128;
  for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
           [](Case& c) { c.seqlen_q = 400, c.batch = 1, c.heads_q = 4, c.heads_kv = 2; },
           [](Case& c) { c.window_right = 0, c.prefix = true; },
           [](Case& c) { c.keep_first = 3, c.window_left = 20, c.seqlen_kv = 700, c.batch = 1; },
           [](Case& c) { c.packed_q = c.packed_kv = c.sink = true; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true; }}) {
    Case plain = base(qk, v);
    plain.heads_q = 1;
    plain.masked_nan = true;
    change(plain);
    Case c = plain;
    c.dense = "bhqk";
    expect_right(c);
    if (!is_usual) continue;
    c.dense = "";
    c.document = true;
    expect_right(c);
    c.document = false;
    for (const int64_t block : {200, 16}) {  // whole query tiles and key tiles are hidden, or hardly one
      c.block_map = "hqk";
      c.block_q = block;
      c.block_kv = block + 5;
      expect_right(c);
    }
    c.block_map = "";
    c.mask_region = 50;
    c.key_ranges = "bh";
    expect_right(c);
    c.key_ranges = "";
    c.query_ranges = "h";
    expect_right(c);
    c.query_ranges = "";
    c.mask_region = 0;
    c.causal_top_left = true;
    expect_right(c, 1, Sources::any);
    c.document = true;
    c.dense = "qk";
    c.draft_mask = "b";
    c.block_map = "bhqk";
    c.block_q = c.block_kv = 40;
    expect_right(c, 1, Sources::any);
  }
}

// Of few queries and of many, of which the mask concerns tiles of keys in the middle.
TEST_P(EmulatedMasks, Drafts) {
  const auto [qk, v] = GetParam();
  for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
           [](Case& c) { c.seqlen_q = 7, c.window_right = 0, c.draft_mask = "1"; }, [](Case& c) { c.seqlen_q = 330; },
           [](Case& c) { c.window_left = 90; }, [](Case& c) { c.packed_q = c.packed_kv = true, c.batch = 3; },
           [](Case& c) {
             c.seqlens_q = c.seqlens_kv = c.leftpad_kv = c.cache_batch_idx = true;
             c.batch = 4;
           }}) {
    Case c = base(qk, v);
    c.heads_q = 1;
    c.masked_nan = true;
    c.draft_mask = "b";
    change(c);
    expect_right(c);
  }
}

// More tiles than a warp walks at once, most of them hidden.
TEST(EmulatedSm90, LongElementMasks) {
  for (const int64_t head_dim : {64, 128}) {
    for (const uint64_t seed : {1, 2}) {
      Case c = base(head_dim, head_dim);
      c.heads_q = 1;
      c.seqlen_q = 200;
      c.seqlen_kv = 5000;
      c.batch = 1;
      c.seed = seed;
      c.block_map = "hqk";
      c.block_q = 100;
      c.block_kv = 1400;
      expect_right(c, seed);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
