// cuda.decode in the emulator: splits over blocks, clusters and schedules, and what each feature makes of the rows.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/part.hpp"
#include "cuda/decode/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Two sequences of three queries, four heads on one.
Case base(int64_t seqlen_kv = 700, int64_t head_dim = 64) {
  Case c{.dtype = "bf16", .batch = 2, .heads_q = 4, .heads_kv = 1, .seqlen_q = 2, .seqlen_kv = seqlen_kv, .seed = 1};
  c.head_dim_qk = c.head_dim_v = head_dim;
  return c;
}

// Right under every schedule of the threads, and of the same bits.
void expect_right(const Case& c, const Gpu& gpu, MakeRecipe recipe = cuda::decode_recipe, int schedules = 2) {
  std::vector<std::byte> first;
  for (int seed = 1; seed <= schedules; ++seed) {
    Call call(c);
    ASSERT_EQ(run_decode(call, recipe, c.max_seqlen, static_cast<uint64_t>(seed), gpu), "") << to_string(c);
    ASSERT_EQ(call.check(), "") << to_string(c) << " splits " << gpu.num_splits << " scheduled " << gpu.scheduled;
    if (first.empty()) first = call.results();
    ASSERT_TRUE(call.results() == first) << "other bits under schedule " << seed << ", " << to_string(c);
  }
}

// Splits of one block, of clusters, of several clusters, which meet in memory, and of blocks without clusters.
TEST(EmulatedDecode, Splits) {
  for (const int splits : {1, 2, 3, 4, 8, 12, 16}) expect_right(base(2100), {.num_splits = splits});
}

// A part of the keys more than there are; none at all.
TEST(EmulatedDecode, ShortCaches) {
  for (const int64_t keys : {0, 1, 15, 17, 130}) {
    for (const int splits : {1, 4, 6}) expect_right(base(keys), {.num_splits = splits});
  }
}

TEST(EmulatedDecode, Rows) {
  for (const int64_t queries : {1, 3, 7, 16}) {  // 4 to 64 rows
    Case c = base(400, 32);
    c.seqlen_q = queries;
    c.window_right = 0;
    expect_right(c, {.num_splits = 2});
  }
}

TEST(EmulatedDecode, HeadDimsAndTypes) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const auto& [qk, v] : {std::pair{32, 32}, {64, 96}, {192, 128}, {40, 72}}) {
      Case c = base(300);
      c.dtype = dtype;
      c.head_dim_qk = qk;
      c.head_dim_v = v;
      expect_right(c, {.num_splits = 4}, cuda::decode_recipe, 1);
    }
  }
}

TEST(EmulatedDecode, Features) {
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case& c) { c.window_left = 100, c.window_right = 0; },
           [](Case& c) { c.window_left = 50, c.window_right = 0, c.keep_first = 20; }, [](Case& c) { c.chunk = 256; },
           [](Case& c) { c.prefix = true; }, [](Case& c) { c.sink = true; },
           [](Case& c) { c.alibi = "bh", c.window_right = 0; }, [](Case& c) { c.softcap = 5; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = true; }, [](Case& c) { c.leftpad_kv = true; },
           [](Case& c) { c.cache_batch_idx = true; },
           [](Case& c) { c.draft_mask = "b", c.seqlen_q = 9, c.masked_nan = true; },
           [](Case& c) { c.draft_mask = "1", c.seqlen_q = 5, c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true; },
           [](Case& c) { c.packed_q = true; }, [](Case& c) { c.packed_q = c.packed_kv = true; },
           [](Case& c) { c.scale = -0.3; }, [](Case& c) { c.spread = 100; }, [](Case& c) { c.causal_top_left = true; },
           [](Case& c) { c.out_dtype = "f32"; }, [](Case& c) { c.lse = false; }}) {
    Case c = base(900, 32);
    change(c);
    expect_right(c, {.num_splits = 6});
    expect_right(c, {.num_sms = 6, .scheduled = true});
  }
}

TEST(EmulatedDecode, Pages) {
  for (const int64_t page_size : {1, 3, 16, 64}) {
    Case c = base(500);
    c.page_size = page_size;
    c.seqlens_kv = c.leftpad_kv = true;
    expect_right(c, {.num_splits = 4});
  }
}

// One maximum for all rows; beyond what it serves, above and below, rows are computed again.
TEST(EmulatedDecode, UnifiedMax) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const auto& change : std::vector<void (*)(Case&)>{
             [](Case&) {}, [](Case& c) { c.spread = 30; }, [](Case& c) { c.mean = -40; }, [](Case& c) { c.mean = 40; },
             [](Case& c) { c.window_left = 40, c.window_right = 0; }, [](Case& c) { c.softcap = 50, c.mean = -60; }}) {
      Case c = base(700, 32);
      c.dtype = dtype;
      change(c);
      expect_right(c, {.num_splits = 4}, cuda::decode_unified_max_recipe, 1);
    }
  }
}

// A row has the same bits whatever is beside it: alone, and in a call with others, which split its keys at the same
// places.
TEST(EmulatedDecode, BatchInvariant) {
  Case c = base(4200, 32);
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
    Case c = base(1500, 32);
    c.batch = 5;
    c.heads_q = 4, c.heads_kv = 2;
    c.seqlens_kv = true;
    for (const uint64_t seed : {1, 2, 3}) {
      c.seed = seed;
      expect_right(c, {.num_sms = num_sms, .scheduled = true}, cuda::decode_recipe, 1);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
