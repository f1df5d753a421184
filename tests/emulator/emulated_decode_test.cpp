// cuda.decode in the emulator: splits over blocks, clusters and schedules, and what each feature makes of the rows.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "cases/part.hpp"
#include "emulated_decode_case.hpp"

namespace tessella::tests {
namespace {

// Splits of one block, of clusters, of several clusters, which meet in memory, and of blocks without clusters.
TEST(EmulatedDecode, Splits) {
  for (const int splits : {1, 2, 3, 4, 8, 12, 16}) expect_decoded(decode_base(2100), {.num_splits = splits});
}

// A part of the keys more than there are; none at all.
TEST(EmulatedDecode, ShortCaches) {
  for (const int64_t keys : {0, 1, 15, 17, 130}) {
    for (const int splits : {1, 4, 6}) expect_decoded(decode_base(keys), {.num_splits = splits});
  }
}

TEST(EmulatedDecode, Rows) {
  for (const int64_t queries : {1, 3, 7, 16}) {  // 4 to 64 rows
    Case c = decode_base(400, 32);
    c.seqlen_q = queries;
    c.window_right = 0;
    expect_decoded(c, {.num_splits = 2});
  }
}

TEST(EmulatedDecode, HeadDimsAndTypes) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const auto& [qk, v] : {std::pair{32, 32}, {64, 96}, {192, 128}, {40, 72}}) {
      Case c = decode_base(300);
      c.dtype = dtype;
      c.head_dim_qk = qk;
      c.head_dim_v = v;
      expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
    }
  }
}

TEST(EmulatedDecode, Features) {
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case& c) { c.window_left = 100, c.window_right = 0; },
           [](Case& c) { c.window_left = 50, c.window_right = 0, c.keep_first = 20; },
           [](Case& c) { c.chunk = 256; },
           [](Case& c) { c.prefix = true; },
           [](Case& c) { c.sink = true; },
           [](Case& c) { c.alibi = "bh", c.window_right = 0; },
           [](Case& c) { c.softcap = 5; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = true; },
           [](Case& c) { c.leftpad_kv = true; },
           [](Case& c) { c.causal_top_left = true, c.chunk = 208, c.masked_nan = true, c.seqlen_q = 3; },
           [](Case& c) { c.cache_batch_idx = true; },
           [](Case& c) { c.draft_mask = "b", c.seqlen_q = 9, c.masked_nan = true; },
           [](Case& c) { c.draft_mask = "1", c.seqlen_q = 5, c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true; },
           [](Case& c) { c.packed_q = true; },
           [](Case& c) { c.packed_q = c.packed_kv = true; },
           [](Case& c) { c.scale = -0.3; },
           [](Case& c) { c.spread = 100; },
           [](Case& c) { c.causal_top_left = true; },
           [](Case& c) { c.out_dtype = "f32"; },
           [](Case& c) { c.lse = false; }}) {
    Case c = decode_base(900, 32);
    change(c);
    expect_decoded(c, {.num_splits = 6});
    expect_decoded(c, {.num_sms = 6, .scheduled = true});
  }
}

TEST(EmulatedDecode, Pages) {
  for (const int64_t page_size : {1, 3, 16, 64}) {
    Case c = decode_base(500);
    c.page_size = page_size;
    c.seqlens_kv = c.leftpad_kv = true;
    expect_decoded(c, {.num_splits = 4});
  }
}

// One maximum for all rows; beyond what it serves, above and below, rows are computed again.
TEST(EmulatedDecode, UnifiedMax) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const auto& change : std::vector<void (*)(Case&)>{
             [](Case&) {}, [](Case& c) { c.spread = 30; }, [](Case& c) { c.mean = -40; }, [](Case& c) { c.mean = 40; },
             [](Case& c) { c.window_left = 40, c.window_right = 0; }, [](Case& c) { c.softcap = 50, c.mean = -60; }}) {
      Case c = decode_base(700, 32);
      c.dtype = dtype;
      change(c);
      expect_decoded(c, {.num_splits = 4}, cuda::decode_unified_max_recipe, 1);
    }
  }
}

// A row has the same bits whatever is beside it: alone, and in a call with others, which split its keys at the same
// places.
TEST(EmulatedDecode, BatchInvariant) {
  Case c = decode_base(4200, 32);
  c.batch = 1;
  c.seqlen_q = 70;
  c.batch_invariant = true;
  const auto run = [](Call& call, const Case& of) {
    return run_decode(call, cuda::decode_recipe, of.max_seqlen, 1, {.few = true});
  };
  for (const int64_t window_left : {-1, 90}) {
    c.window_right = 0;
    c.window_left = window_left;
    EXPECT_EQ(check_parts({c}, run), "") << to_string(c);
  }
}

// Ragged lengths: pieces that begin and end inside units, hold several, or none.
TEST(EmulatedDecode, Schedules) {
  for (const int num_sms : {2, 5, 16, 40}) {
    Case c = decode_base(1500, 32);
    c.batch = 5;
    c.heads_q = 4, c.heads_kv = 2;
    c.seqlens_kv = true;
    for (const uint64_t seed : {1, 2, 3}) {
      c.seed = seed;
      expect_decoded(c, {.num_sms = num_sms, .scheduled = true}, cuda::decode_recipe, 1);
    }
  }
}

// Lengths have grown and shrunk since the schedule was made.
TEST(EmulatedDecode, StaleSchedules) {
  for (const MakeRecipe recipe : {cuda::decode_recipe, cuda::decode_unified_max_recipe}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      Case c = decode_base(1200, 32);
      c.batch = 4;
      c.seqlens_kv = true;
      c.mean = seed % 2 == 0 ? 0 : -300;
      c.seed = seed;
      const int num_sms = seed % 3 == 0 ? 40 : 9;
      expect_decoded(c, {.num_sms = num_sms, .scheduled = true, .stale_schedule = seed}, recipe, 1);
    }
  }
}

// Empty ranges beside keys that keep_first keeps, of scores that exponents against zero do not serve.
TEST(EmulatedDecode, UnifiedMaxOfKeptKeysAlone) {
  for (const char* dtype : {"bf16", "f16"}) {
    Case c = decode_base(500, 32);
    c.dtype = dtype;
    c.seqlen_q = 2;
    c.causal_top_left = true;
    c.window_left = 20;
    c.keep_first = 1;
    c.mean = -400;
    expect_decoded(c, {.num_splits = 4}, cuda::decode_unified_max_recipe, 1);
  }
}

// Whatever tables hold, a call ends, and nothing but its results changes.
TEST(EmulatedDecode, HostileTables) {
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case& c) { c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true; }, [](Case& c) { c.cache_batch_idx = true; },
           [](Case& c) { c.packed_q = c.packed_kv = c.leftpad_kv = true; },
           [](Case& c) { c.packed_q = true, c.alibi = "bh"; },
           [](Case& c) { c.page_size = 3, c.seqlens_kv = c.leftpad_kv = c.prefix = true; },
           [](Case& c) { c.page_size = 16, c.packed_q = c.seqlens_kv = true, c.keep_first = 5, c.window_left = 30; },
           [](Case& c) { c.draft_mask = "b", c.seqlens_q = c.seqlens_kv = c.cache_batch_idx = true; }}) {
    for (const Gpu& gpu : {Gpu{.num_splits = 2}, Gpu{.num_splits = 3}, Gpu{.num_sms = 6, .scheduled = true}}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        Case c = decode_base(90, 32);
        c.batch = 3;
        c.guard = seed % 2 == 0;
        change(c);
        Call call(c);
        Gpu hostile = gpu;
        hostile.hostile_tables = seed;
        ASSERT_EQ(run_decode(call, cuda::decode_recipe, c.max_seqlen, seed, hostile), "") << to_string(c);
        ASSERT_EQ(call.spoiled(), "") << to_string(c) << " tables of " << seed;
      }
    }
  }
}

TEST(EmulatedDecode, HostileSchedules) {
  for (const int num_sms : {2, 6, 40}) {
    for (uint64_t seed = 1; seed <= 15; ++seed) {
      Case c = decode_base(300, 32);
      c.batch = 4;
      c.guard = c.seqlens_kv = true;
      c.packed_q = seed % 3 == 0;
      Call call(c);
      const Gpu gpu{.num_sms = num_sms, .scheduled = true, .hostile_schedule = seed};
      ASSERT_EQ(run_decode(call, cuda::decode_recipe, c.max_seqlen, seed, gpu), "") << to_string(c);
      ASSERT_EQ(call.spoiled(), "") << to_string(c) << " schedule of " << seed;
    }
  }
}

}  // namespace
}  // namespace tessella::tests
