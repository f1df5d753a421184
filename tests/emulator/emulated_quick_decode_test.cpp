// What goes wrong in decode first: a test each for its merges, its waits and its schedule, in seconds. Each names what
// it catches in mutations*.py.
#include <gtest/gtest.h>

#include <string>

#include "emulated_decode_case.hpp"

namespace tessella::tests {
namespace {

// One sequence of two queries, four heads on one: rows that a warp has to itself.
Case small(int64_t seqlen_kv = 600) {
  Case c = decode_base(seqlen_kv, 32);
  c.batch = 1;
  return c;
}
// 64 rows, of which all warps sum columns.
Case many_rows(int64_t seqlen_kv = 600) {
  Case c = small(seqlen_kv);
  c.seqlen_q = 16;
  return c;
}

// Blocks that meet in memory: the last to arrive is any of them.
TEST(EmulatedQuickDecode, Merges) { expect_decoded(small(), {.num_splits = 3}, cuda::decode_recipe, 8); }

// Blocks that meet in shared memory, and clusters of them that meet in memory.
TEST(EmulatedQuickDecode, Clusters) {
  for (const int splits : {4, 12}) expect_decoded(small(1100), {.num_splits = splits}, cuda::decode_recipe, 4);
}

TEST(EmulatedQuickDecode, FewRows) {
  Case c = small(1500);
  c.spread = 20;
  expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 4);
}

// Values of the last step lie where rows of out will.
TEST(EmulatedQuickDecode, ManyRows) {
  Case c = many_rows(1000);
  for (const double spread : {1.0, 20.0}) {
    c.spread = spread;
    expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 4);
  }
}

// The first query sees all keys of its last tile but one.
TEST(EmulatedQuickDecode, Causal) {
  Case c = small(256);
  c.window_right = 0;
  c.spread = 4;
  expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 1);
}

// NaN in keys between those of two queries, which no query sees: decode tests each key of such steps.
TEST(EmulatedQuickDecode, BandsWithHoles) {
  for (const char* mask : {"causal_top_left=1 window_left=3 seqlen_q=8 seqlen_kv=90",
                           "causal_top_left=1 chunk=64 seqlen_q=4 seqlen_kv=66"}) {
    const Case c =
        parse("dtype=bf16 heads_q=2 heads_kv=1 head_dim_qk=64 head_dim_v=64 masked_nan=1 seed=1 " + std::string(mask));
    expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 1);
  }
}

// Masks that are read key by key; of the last, 40 of 64 rows are there.
TEST(EmulatedQuickDecode, ElementMasks) {
  for (const char* mask : {"key_ranges=h", "query_ranges=1 leftpad_kv=1 seqlens_kv=1", "document=1 dense=hk",
                           "key_ranges=1 draft_mask=1 page_size=24", "query_ranges=h seqlen_q=10"}) {
    Case c = parse(to_string(small(400)) + " masked_nan=1 " + mask);
    expect_decoded(c, {.num_splits = 2}, cuda::decode_recipe, 2);
  }
  expect_decoded(
      parse(to_string(small(400)) + " masked_nan=1 key_ranges=h mask_region=2 dtype=f16 kv_dtype=i8 kv_scale=th"),
      {.num_splits = 2}, cuda::decode_recipe, 2);
}

// -1 in the table for pages behind a window; page 0 holds NaN, and so do its scales.
TEST(EmulatedQuickDecode, EvictedPages) {
  Case c = small(500);
  c.kernel = "reference.attention";  // what the collector computes calls with
  c.window_left = 100;
  c.window_right = 0;
  c.keep_first = 3;
  c.masked_nan = true;
  c.page_size = 24;
  expect_decoded(c, {.num_splits = 2}, cuda::decode_recipe, 2);
  c.dtype = "f16";
  c.out_dtype = "f32";
  c.kv_dtype = "i8";
  c.kv_scale = "th";
  expect_decoded(c, {.num_splits = 2}, cuda::decode_recipe, 2);
}

// k and v of 8 bits in f16, with scales of each token that are below what f16 holds.
TEST(EmulatedQuickDecode, Quantized) {
  for (Case c : {small(500), many_rows(500)}) {
    c.kernel = "reference.attention";  // what the collector computes calls with
    c.dtype = "f16";
    c.out_dtype = "f32";
    c.kv_dtype = "i8";
    c.kv_scale = "th";
    c.page_size = 48;
    Call call(c);
    const tessella_tensor& t = *call.args().v_scale;
    for (int64_t i = 0; i < t.shape[0] * t.strides[0]; ++i) static_cast<float*>(t.data)[i] *= 0x1p-24f;
    ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, 1, {.num_splits = 2}), "");
    ASSERT_EQ(call.check(), "") << to_string(c);
  }
}

// NaN in drafts that no query sees, in a whole tile of keys.
TEST(EmulatedQuickDecode, Drafts) {
  Case c = small(112);
  c.seqlen_q = 2;
  c.draft_mask = "b";
  c.masked_nan = true;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    c.seed = seed;
    expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 1);
  }
}

// MLA's caches: a ring of keys that serve twice, maxima of rows that other warps score, states read in other blocks.
TEST(EmulatedQuickDecode, ValuesInKeys) {
  Case c = small(330);
  c.kernel = "reference.attention";
  c.heads_q = 20;
  c.seqlen_q = 1;
  c.head_dim_qk = 576, c.head_dim_v = 512;
  c.v_in_k = true;
  for (const double spread : {1.0, 60.0}) {
    c.spread = spread;
    for (const int splits : {1, 4}) expect_decoded(c, {.num_splits = splits}, cuda::decode_recipe, 3);
  }
}

// Pieces that begin and end inside units; of pairs of blocks where there are many of them.
TEST(EmulatedQuickDecode, Schedules) {
  Case c = small(900);
  c.batch = 3;
  c.seqlens_kv = true;
  for (const uint64_t seed : {1, 2, 3}) {
    c.seed = seed;
    for (const int num_sms : {3, 16}) {
      expect_decoded(c, {.num_sms = num_sms, .scheduled = true}, cuda::decode_recipe, 3);
    }
  }
}

// Pairs of blocks that have several units each, one after the other.
TEST(EmulatedQuickDecode, LongSchedules) {
  Case c = small(2600);
  c.batch = 3;
  expect_decoded(c, {.num_sms = 16, .scheduled = true}, cuda::decode_recipe, 8);
}

// Scores beyond what one maximum serves, above and below.
TEST(EmulatedQuickDecode, UnifiedMax) {
  for (const double mean : {-60.0, 40.0}) {
    Case c = small(300);
    c.dtype = "f16";
    c.mean = mean;
    expect_decoded(c, {.num_splits = 2}, cuda::decode_unified_max_recipe, 2);
  }
}

}  // namespace
}  // namespace tessella::tests
