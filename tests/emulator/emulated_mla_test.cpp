// cuda.decode of MLA's caches in the emulator: head dims 576 and 512, values in the keys, which are read once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/part.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "emulated_decode_case.hpp"
#include "operations/attention/attention.hpp"

namespace tessella::tests {
namespace {

constexpr const char* kReference = "reference.attention";  // where a CPU computes it: kernels lack such head dims

// Two sequences of one query, whose heads are all on one.
Case mla(int64_t heads = 16, int64_t seqlen_kv = 300) {
  Case c = decode_base(seqlen_kv);
  c.kernel = kReference;
  c.heads_q = heads;
  c.seqlen_q = 1;
  c.head_dim_qk = 576;
  c.head_dim_v = 512;
  c.v_in_k = true;
  return c;
}

// Rows of one tile, of several, and less than a tile has.
TEST(EmulatedMla, Rows) {
  for (const int64_t heads : {1, 16, 20, 64, 128}) {
    for (const int splits : {1, 4}) expect_decoded(mla(heads, 150), {.num_splits = splits}, cuda::decode_recipe, 1);
  }
  Case c = mla(16, 200);
  c.seqlen_q = 3;
  c.window_right = 0;
  expect_decoded(c, {.num_splits = 2});
}

// Many queries: no other kernel takes such rows.
TEST(EmulatedMla, Prefill) {
  Case c = mla(16, 80);
  c.batch = 1;
  c.seqlen_q = 40;
  c.window_right = 0;
  expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 1);
}

// Blocks, clusters, whose blocks read each other's states, and clusters that meet in memory.
TEST(EmulatedMla, Splits) {
  for (const int splits : {1, 2, 3, 8, 12}) expect_decoded(mla(16, 500), {.num_splits = splits});
  for (const int splits : {3, 8}) expect_decoded(mla(64, 200), {.num_splits = splits}, cuda::decode_recipe, 1);
}

TEST(EmulatedMla, ShortCaches) {
  for (const int64_t keys : {0, 1, 15, 17, 33}) {
    for (const int splits : {1, 4}) expect_decoded(mla(16, keys), {.num_splits = splits}, cuda::decode_recipe, 1);
  }
}

// Scores that rise from step to step, of rows that other warps score than sum.
TEST(EmulatedMla, MaximaRise) {
  for (const int64_t heads : {16, 32, 64}) {
    Case c = mla(heads, 260);
    c.spread = 100;
    for (const uint64_t seed : {1, 2}) {
      c.seed = seed;
      expect_decoded(c, {.num_splits = 1});
    }
  }
}

// Latent rows of other models: columns of both tiles that are not there.
TEST(EmulatedMla, HeadDimsAndTypes) {
  Case c = mla(20, 200);
  for (const char* dtype : {"bf16", "f16"}) {
    c.dtype = dtype;
    c.head_dim_qk = 576, c.head_dim_v = 512;
    expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
    c.head_dim_qk = 320, c.head_dim_v = 256;
    expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
    c.head_dim_qk = 264, c.head_dim_v = 256;
    expect_decoded(c, {.num_splits = 1}, cuda::decode_recipe, 1);
  }
}

TEST(EmulatedMla, Features) {
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case& c) { c.window_left = 100, c.window_right = 0; },
           [](Case& c) { c.window_left = 50, c.window_right = 0, c.keep_first = 20, c.masked_nan = true; },
           [](Case& c) { c.chunk = 128; }, [](Case& c) { c.prefix = true; }, [](Case& c) { c.sink = true; },
           [](Case& c) { c.alibi = "bh", c.softcap = 5, c.window_right = 0; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = true; }, [](Case& c) { c.leftpad_kv = c.masked_nan = true; },
           [](Case& c) { c.cache_batch_idx = true; },
           [](Case& c) { c.draft_mask = "b", c.seqlen_q = 5, c.masked_nan = true; },
           [](Case& c) { c.packed_q = c.packed_kv = true; }, [](Case& c) { c.scale = -0.03; },
           [](Case& c) { c.layout = "gaps"; }, [](Case& c) { c.heads_kv = 2; },
           [](Case& c) { c.out_dtype = "f32", c.lse = false; }}) {
    Case c = mla(6, 400);
    c.seqlen_q = 2;
    change(c);
    expect_decoded(c, {.num_splits = 6}, cuda::decode_recipe, 1);
    expect_decoded(c, {.num_sms = 6, .scheduled = true}, cuda::decode_recipe, 1);
  }
}

TEST(EmulatedMla, Pages) {
  for (const int64_t page_size : {1, 3, 16, 64}) {
    Case c = mla(32, 250);
    c.page_size = page_size;
    c.seqlens_kv = c.leftpad_kv = true;
    expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
  }
}

TEST(EmulatedMla, BatchInvariant) {
  Case c = mla(1, 4200);
  c.kernel = "";
  c.head_dim_qk = 320, c.head_dim_v = 256;
  c.batch = 1;
  c.seqlen_q = 70;
  c.window_left = 90;  // across the key where keys are cut
  c.window_right = 0;
  c.batch_invariant = true;
  const auto run = [](Call& call, const Case& of) {
    return run_decode(call, cuda::decode_recipe, of.max_seqlen, 1, {.few = true});
  };
  EXPECT_EQ(check_parts({c}, run), "") << to_string(c);
}

// Pieces that begin and end inside units, and lengths that have changed since.
TEST(EmulatedMla, Schedules) {
  for (const int num_sms : {2, 5, 16}) {
    Case c = mla(32, 500);
    c.batch = 4;
    c.seqlens_kv = true;
    for (const uint64_t seed : {1, 2}) {
      c.seed = seed;
      expect_decoded(c, {.num_sms = num_sms, .scheduled = true}, cuda::decode_recipe, 1);
      expect_decoded(c, {.num_sms = num_sms, .scheduled = true, .stale_schedule = seed}, cuda::decode_recipe, 1);
    }
  }
}

TEST(EmulatedMla, HostileTables) {
  for (const auto& change :
       std::vector<void (*)(Case&)>{[](Case& c) { c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true; },
                                    [](Case& c) { c.page_size = 3, c.seqlens_kv = c.leftpad_kv = true; }}) {
    for (const Gpu& gpu : {Gpu{.num_splits = 2}, Gpu{.num_sms = 6, .scheduled = true}}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        Case c = mla(16, 90);
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

// Values in keys of lengths that have kernels of their own are read as any others.
TEST(EmulatedMla, ShortRows) {
  for (const int64_t head_dim_v : {64, 32}) {
    Case c = decode_base(300);
    c.head_dim_v = head_dim_v;
    c.v_in_k = true;
    expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
  }
}

TEST(EmulatedMla, RandomCases) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Case c = random_mla_case(seed, "cuda.decode", "bf16 f16", 4);
    c.kernel = kReference;
    Gpu gpu{.num_sms = static_cast<int>(2 + seed % 41), .num_splits = static_cast<int>(c.num_splits), .few = c.few};
    c.few = false;  // the GPU's alone; the call's are those of the CPU
    c.num_splits = 0;
    if (!gpu.few && seed % 3 == 0) {
      gpu.scheduled = true;
      gpu.num_splits = 0;
    }
    expect_decoded(c, gpu, cuda::decode_recipe, 1);
    if (HasFailure()) return;
  }
}

// What random_test runs on a GPU.
TEST(RandomMla, EveryOneIsEligible) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = random_mla_case(seed, "cuda.decode", "f32 bf16 f16");
    const Call call(c);
    core::AttentionArguments p = api::read<core::Forward>(&call.args(), call.options(), "random", nullptr);
    for (const core::Name name : core::kNames) p.operands[name].alignment = 16;
    for (const int arch : {80, 86, 90}) {
      ASSERT_EQ(cuda::decode_recipe(p, cuda::typical_device(arch)).ineligible, "") << to_string(c);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
