// cuda.forward_sm90 in the emulator, as a call on a GPU runs it. Masks of elements have a file of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "emulated_case.hpp"
#include "emulated_parts.hpp"

namespace tessella::tests {
namespace {

TEST(EmulatedSm90, HeadDims) {
  for (const auto& [qk, v] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}, {40, 56}}) {
    expect_right(base(qk, v));
  }
  Case c = base(256, 256);
  c.batch = 1;
  c.seqlen_kv = 1040;
  expect_right(c);
  for (const int64_t v : {96, 128}) {  // wider than q, where out does not fit
    c = base(64, v);
    expect_right(c);
    c.window_left = 90, c.window_right = 4;
    expect_right(c);
  }
}

// Sections of a head, and a last one of four.
TEST(EmulatedSm90, Sections) {
  Case c = base(64, 64);
  c.batch = 3;
  c.heads_q = 8;
  c.heads_kv = 4;
  c.seqlen_kv = 100;
  c.window_right = 0;
  expect_right(c);
}

TEST(EmulatedSm90, Half) {
  Case c = base(64, 64);
  c.dtype = "f16";
  expect_right(c);
}

TEST(EmulatedSm90, Bands) {
  for (const Case& of : {base(64, 64), base(128, 128), base_of_long(128)}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case& c) { c.window_right = 0; }, [](Case& c) { c.window_left = 90, c.window_right = 4; },
             [](Case& c) { c.causal_top_left = true; }, [](Case& c) { c.chunk = 70; },
             [](Case& c) { c.seqlen_q = 500, c.seqlen_kv = 900, c.window_left = 450, c.window_right = 30; },
             [](Case& c) { c.keep_first = 3, c.window_left = 20, c.seqlen_kv = 600; }, [](Case& c) { c.prefix = true; },
             [](Case& c) { c.window_right = 0, c.seqlen_q = 500, c.seqlen_kv = 130; },
             [](Case& c) { c.seqlen_kv = 0; }}) {
      Case c = of;
      change(c);
      expect_right(c);
    }
  }
}

TEST(EmulatedSm90, Lengths) {
  for (const Case& of : {base(64, 64), base(128, 128), base_of_long(128)}) {
    for (const std::function<void(Case&)>& change :
         std::vector<std::function<void(Case&)>>{[](Case& c) { c.packed_q = c.packed_kv = true; },
                                                 [](Case& c) { c.packed_q = c.packed_kv = true, c.window_right = 0; },
                                                 [](Case& c) { c.seqlens_q = c.seqlens_kv = true; },
                                                 [](Case& c) { c.leftpad_kv = true, c.window_right = 0; },
                                                 [](Case& c) { c.cache_batch_idx = c.seqlens_kv = true; }}) {
      for (const uint64_t seed : {1, 2}) {
        Case c = of;
        c.batch = 3;
        c.seed = seed;
        change(c);
        expect_right(c);
      }
    }
  }
}

TEST(EmulatedSm90, Pages) {
  for (const auto& [head_dim, page_size] :
       {std::pair{64, 8}, {64, 64}, {64, 256}, {128, 16}, {128, 48}, {128, 128}, {192, 16}, {192, 64}}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case&) {}, [](Case& c) { c.seqlens_kv = c.seqlens_q = true; },
             [](Case& c) { c.seqlens_kv = true, c.window_right = 0, c.packed_q = true; }}) {
      Case c = base(head_dim, head_dim);
      c.heads_q = c.heads_kv = 2;
      c.page_size = page_size;
      change(c);
      expect_right(c);
    }
  }
  Case c = base(64, 64);
  c.page_size = 16;
  c.dense = "bhqk";
  c.masked_nan = c.seqlens_kv = true;
  expect_right(c);
}

TEST(EmulatedSm90, Scores) {
  Case c = base(64, 64);
  c.softcap = 2;
  expect_right(c);
  c = base(128, 128);
  c.alibi = "bh";
  expect_right(c);
  for (const int64_t window_left : {-1, 90}) {
    for (const int64_t window_right : {-1, 0}) {
      c = base(64, 64);
      c.bias = "bhqk";
      c.window_left = window_left;
      c.window_right = window_right;
      expect_right(c);
      c = base(128, 128);
      c.dropout = 0.3;
      c.window_left = window_left;
      c.window_right = window_right;
      expect_right(c);
    }
  }
}

// The order of key tiles that begins near the queries, where it applies and where it does not.
TEST(EmulatedSm90, NearKeysFirst) {
  for (const int64_t head_dim : {64, 128}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case&) {}, [](Case& c) { c.window_right = 20; },
             [](Case& c) { c.seqlen_q = 900, c.seqlen_kv = 300, c.window_right = 0; },
             [](Case& c) { c.seqlen_q = 700, c.seqlen_kv = 200, c.causal_top_left = true; },
             [](Case& c) { c.prefix = true, c.seqlens_kv = c.seqlens_q = true; },
             [](Case& c) { c.keep_first = 5, c.window_left = 150; },
             [](Case& c) { c.page_size = c.head_dim_v == 128 ? 64 : 0, c.window_right = 0; }}) {
      Case c = base(head_dim, head_dim);
      c.batch = 1;
      c.alibi = "h";
      c.seqlen_q = 257;
      c.seqlen_kv = 640;
      change(c);
      expect_right(c);
    }
  }
}

// Key tiles that all rows see whole, between those that bands end in on the left and on the right.
TEST(EmulatedSm90, BandsOfLongRows) {
  for (const Case& of : {base(128, 128), base_of_long(128), base(192, 192)}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case& c) { c.window_left = 450, c.window_right = 0; }, [](Case& c) { c.chunk = 333; },
             [](Case& c) { c.keep_first = 150, c.window_left = 350; },
             [](Case& c) { c.packed_q = c.packed_kv = true, c.batch = 3, c.window_left = 300; },
             [](Case& c) { c.leftpad_kv = c.masked_nan = true, c.window_left = 400, c.window_right = 9; }}) {
      Case c = of;
      c.batch = c.heads_q = c.heads_kv = 1;
      c.seqlen_q = 400;
      c.seqlen_kv = 900;
      change(c);
      expect_right(c);
    }
  }
}

// Bits of out do not depend on whether lse is asked for.
TEST(EmulatedSm90, OutIsTheSameWithLseAndWithout) {
  for (const std::function<void(Case&)>& change :
       std::vector<std::function<void(Case&)>>{[](Case&) {}, [](Case& c) { c.softcap = 30; },
                                               [](Case& c) { c.softcap = 2; }, [](Case& c) { c.alibi = "h"; }}) {
    for (const Case& of : {base(64, 64), base(128, 128), base_of_long(128)}) {
      Case c = of;
      c.batch = 1;
      change(c);
      std::vector<std::byte> with_lse, without;
      c.lse = true;
      EXPECT_EQ(run_sm90(c, 1, &with_lse), "") << to_string(c);
      c.lse = false;
      EXPECT_EQ(run_sm90(c, 1, &without), "") << to_string(c);
      ASSERT_LT(without.size(), with_lse.size());
      EXPECT_TRUE(std::equal(without.begin(), without.end(), with_lse.begin())) << to_string(c);
    }
  }
}

// Within the lengths and beyond them, with and without turns, beside what changes tiles.
TEST(EmulatedSm90, ScoreMods) {
  const auto of = [](int64_t head_dim_qk, int64_t head_dim_v) {
    Case c = base(head_dim_qk, head_dim_v);
    c.batch = 1;
    c.alibi = "h";
    c.seqlen_q = c.seqlen_kv = 500;
    return c;
  };
  using Change = std::function<void(Case&)>;
  for (const Change& change :
       std::vector<Change>{[](Case&) {}, [](Case& c) { c.window_right = 0; }, [](Case& c) { c.window_left = 150; },
                           [](Case& c) { c.seqlen_q = c.seqlen_kv = 384; }, [](Case& c) { c.seqlen_q = 210; },
                           [](Case& c) { c.batch = 2, c.seqlens_q = c.seqlens_kv = true; },
                           [](Case& c) { c.batch = 3, c.packed_q = c.packed_kv = true; }}) {
    for (const int64_t head_dim : {64, 128}) {
      Case c = of(head_dim, head_dim);
      change(c);
      expect_right(c, 1, Sources::any);
    }
  }
  for (const uint64_t seed : {2, 3, 4}) expect_right(of(128, 128), seed, Sources::any);
  expect_right(of(192, 128), 1, Sources::any);
  for (const Change& change : std::vector<Change>{[](Case& c) { c.page_size = 16, c.batch = 2, c.seqlens_kv = true; },
                                                  [](Case& c) { c.dense = "bhqk", c.masked_nan = true; },
                                                  [](Case& c) { c.batch_invariant = true; }}) {
    Case c = of(128, 128);
    change(c);
    expect_right(c, 1, Sources::any);
  }
}

TEST(EmulatedSm90, AlibiBesideAScoreMod) {
  for (const int64_t head_dim : {64, 128}) {
    for (const int32_t window_right : {-1, 0}) {
      Case c = base(head_dim, head_dim);
      c.alibi = "h";
      c.window_right = window_right;
      expect_right(c, 1, Sources::beside_alibi);
    }
  }
}

// Three warpgroups: the first tile of queries is the short one.
TEST(EmulatedSm90, ShortTilesOfQueries) {
  for (const auto& [of, seqlen_q] : {std::pair{base(64, 64), 193},
                                     {base(64, 64), 256},
                                     {base(64, 64), 385},
                                     {base(64, 64), 448},
                                     {base_of_long(128), 193},
                                     {base_of_long(128), 448}}) {
    for (const std::function<void(Case&)>& change :
         std::vector<std::function<void(Case&)>>{[](Case& c) { c.window_right = 0, c.out_dtype = "f32"; },
                                                 [](Case& c) { c.seqlens_q = c.seqlens_kv = true, c.window_right = 0; },
                                                 [](Case& c) { c.packed_q = c.packed_kv = true, c.batch = 3; },
                                                 [](Case& c) { c.document = c.masked_nan = c.head_dim_v == 64; }}) {
      Case c = of;
      c.heads_q = 1;
      c.seqlen_q = seqlen_q;
      c.seqlen_kv = seqlen_q;
      change(c);
      expect_right(c);
    }
  }
}

// Tiles before, beside and behind the diagonal; maxima that grow from tile to tile, or hardly.
TEST(EmulatedSm90, Slopes) {
  for (const double spread : {0.3, 20.0}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case&) {}, [](Case& c) { c.window_right = 0; }, [](Case& c) { c.chunk = 190; },
             [](Case& c) { c.packed_q = c.packed_kv = true, c.batch = 3; }}) {
      Case c = base(128, 128);
      c.batch = 1;
      c.heads_q = 4;  // some slopes are negative
      c.alibi = "bh";
      c.spread = spread;
      c.seqlen_q = 500;
      c.seqlen_kv = 700;
      change(c);
      expect_right(c);
    }
  }
}

TEST(EmulatedSm90, OutputsAndScales) {
  Case c = base(64, 64);
  c.out_dtype = "f32";
  expect_right(c);
  c = base(64, 64);
  c.sink = true;
  expect_right(c);
  c = base(128, 128);
  c.scale = -0.1;
  expect_right(c);
  c.spread = 40;
  expect_right(c);
}

// Maxima that later tiles exceed: by what sums of probabilities show, and by far more.
TEST(EmulatedSm90, GrowingScores) {
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const double spread : {4.0, 15.0, 60.0}) {
      Case c = base(head_dim, head_dim);
      c.batch = 1;
      c.heads_q = 1;
      c.seqlen_kv = 900;
      c.spread = spread;
      c.window_right = spread == 15 ? 0 : -1;
      expect_right(c);
    }
  }
  Case c = base(128, 128);
  c.seqlen_kv = 900;
  c.alibi = "h";
  expect_right(c);
  for (const double spread : {1.5, 3.0, 15.0}) {  // products that later tiles take beyond the softcap's series
    c = base(64, 64);
    c.seqlen_kv = 900;
    c.softcap = 30;
    c.spread = spread;
    expect_right(c);
  }
}

// All that the kernel reads at run time, joined at random.
TEST(EmulatedSm90, RandomCases) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Case c = random_case(seed, "", "bf16");
    c.device = c.out_dtype = c.dense = c.block_map = c.draft_mask = c.bias = c.alibi = "";
    if (seed % 8 == 1) c.dense = "hqk";
    if (seed % 8 == 5) c.draft_mask = "b";
    if (seed % 4 == 2) c.block_map = "bqk";
    c.layout = seed % 2 == 0 ? "bshd" : "bhsd";
    c.shift = 0;
    c.guard = c.plan = c.batch_invariant = false;
    c.document = seed % 4 == 3;
    c.softcap = c.dropout = 0;
    c.page_size = 0;
    if (seed % 8 == 0) c.page_size = 16, c.packed_kv = c.leftpad_kv = c.cache_batch_idx = false;
    c.head_dim_qk = c.head_dim_v = seed % 3 == 0 ? 128 : 64;
    c.batch = std::min<int64_t>(c.batch, 3);
    c.heads_q = c.heads_kv = std::min<int64_t>(c.heads_kv, 2);
    expect_right(c, seed);
  }
}

// The order in which warps run, copies land and products read decides nothing, nor does what shared memory held.
TEST(EmulatedSm90, AnyOrderGivesTheSameBits) {
  Case narrow = base(64, 64);
  narrow.batch = 1;
  narrow.window_right = 0;
  Case wide = base(128, 128);
  wide.batch = 1;
  wide.window_right = 0;
  Case paged = base(64, 64);
  paged.seqlen_kv = 32;
  paged.page_size = 16;
  paged.softcap = 30;
  paged.out_dtype = "f32";
  for (const Case& c : {narrow, wide, paged}) {
    SCOPED_TRACE(to_string(c));
    std::vector<std::byte> expected;
    EXPECT_EQ(run_sm90(c, 1, &expected), "");
    for (uint64_t seed = 2; seed <= 8; ++seed) {
      std::vector<std::byte> results;
      EXPECT_EQ(run_sm90(c, seed, &results), "");
      EXPECT_EQ(results, expected) << "seed " << seed;
    }
  }
}

TEST(EmulatedSm90, BatchInvariantOfThreeWarpgroups) {
  expect_equal_parts(64, &Case::dense, [](Call& call, const Case& part) { return run_sm90(call, part, 1); });
}
TEST(EmulatedSm90, BatchInvariantOfTwoWarpgroups) {
  expect_equal_parts(128, &Case::bias, [](Call& call, const Case& part) { return run_sm90(call, part, 1); });
}

}  // namespace
}  // namespace tessella::tests
