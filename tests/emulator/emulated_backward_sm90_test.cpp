// cuda.backward_sm90 in the emulator, as a call on a GPU runs it: right, and of the same bits under every schedule.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/backward_features.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Two heads on one, three query tiles and four key tiles, the last ones not whole.
constexpr const char* kSizes =
    "dtype=bf16 heads_q=2 heads_kv=1 seqlen_q=150 seqlen_kv=500 head_dim_qk=64 head_dim_v=64 seed=1";

void expect_right(const std::string& features, int num_schedules = 1) {
  const Case c = with_feature(kSizes, features);
  std::vector<std::byte> first;
  for (int seed = 1; seed <= num_schedules; ++seed) {
    BackwardCall call(c);
    ASSERT_EQ(run_backward(call, cuda::backward_sm90_recipe, c.max_seqlen, static_cast<uint64_t>(seed)), "")
        << to_string(c);
    ASSERT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
    if (first.empty()) first = call.results();
    ASSERT_TRUE(call.results() == first) << "other bits under schedule " << seed << ", " << to_string(c);
  }
}

// Head dims above 128, whose kernels of dK and dV and of dQ have key tiles of 64: four of those, the last one not
// whole.
constexpr const char* kWide = "seqlen_kv=230 head_dim_qk=192 head_dim_v=128 ";

// Four schedules do not show a turn that does not wait for its boxes.
TEST(EmulatedBackwardSm90, Turns) { expect_right("", 8); }

TEST(EmulatedBackwardSm90, HeadDims) {
  for (const char* dims :
       {"head_dim_qk=128 head_dim_v=128", "head_dim_qk=96 head_dim_v=80", "head_dim_qk=24 head_dim_v=40"}) {
    expect_right(std::string(dims) + " window_right=0", 2);
  }
}

TEST(EmulatedBackwardSm90, Bands) {
  for (const char* band : {"window_right=0", "window_left=60 window_right=0", "window_right=0 seqlen_kv=100",
                           "window_left=30 window_right=0 keep_first=5", "chunk=70", "causal_top_left=1", "prefix=1",
                           "seqlen_q=10", "seqlen_kv=1", "seqlen_q=0"}) {
    expect_right(band);
  }
}

TEST(EmulatedBackwardSm90, Lengths) {
  for (const char* lengths :
       {"batch=3 packed_q=1 packed_kv=1", "batch=3 packed_q=1 packed_kv=1 window_right=0",
        "batch=3 seqlens_q=1 seqlens_kv=1 masked_nan=1", "batch=2 leftpad_kv=1 masked_nan=1 window_right=0"}) {
    expect_right(lengths, 2);
  }
}

TEST(EmulatedBackwardSm90, Scores) {
  for (const char* scores : {"softcap=2", "dropout=0.3", "bias=bhqk", "scale=-0.1 sink=1"}) expect_right(scores);
  for (const char* wide : {"softcap=2 bias=bhqk", "dropout=0.3"}) {
    expect_right(std::string("head_dim_qk=128 head_dim_v=128 ") + wide);
  }
}

TEST(EmulatedBackwardSm90, WideHeadDims) {
  for (const char* dims :
       {"head_dim_qk=256 head_dim_v=256", "", "head_dim_qk=136 head_dim_v=192", "head_dim_qk=40 head_dim_v=200"}) {
    expect_right(std::string(kWide) + "window_right=0 " + dims, 2);
  }
}

TEST(EmulatedBackwardSm90, WideBands) {
  for (const char* band : {"", "window_left=60 window_right=0", "window_right=0 seqlen_kv=100",
                           "window_left=30 window_right=0 keep_first=5", "chunk=70", "causal_top_left=1", "prefix=1",
                           "seqlen_q=10", "seqlen_kv=1", "seqlen_kv=0", "seqlen_q=0"}) {
    expect_right(std::string(kWide) + band);
  }
}

TEST(EmulatedBackwardSm90, WideLengths) {
  for (const char* lengths :
       {"batch=3 packed_q=1 packed_kv=1", "batch=3 packed_q=1 packed_kv=1 window_right=0",
        "batch=3 seqlens_q=1 seqlens_kv=1 masked_nan=1", "batch=2 leftpad_kv=1 masked_nan=1 window_right=0"}) {
    expect_right(std::string(kWide) + lengths);
  }
}

TEST(EmulatedBackwardSm90, WideScores) {
  for (const char* scores : {"softcap=2", "dropout=0.3 window_right=0", "bias=bhqk", "scale=-0.1 sink=1", "alibi=h",
                             "gradients=q", "gradients=v gradients_f32=1"}) {
    expect_right(kWide + std::string("head_dim_qk=256 head_dim_v=256 ") + scores);
  }
}

// Masks of elements, where keys that no query sees hold NaN, with dQ beside the other gradients and apart.
TEST(EmulatedBackwardSm90, Masks) {
  for (const char* dims : {"", kWide}) {
    for (const char* mask : {"document=1 masked_nan=1", "dense=bhqk", "dense=k masked_nan=1 window_right=0", "dense=hk",
                             "block_map=hqk batch=2 leftpad_kv=1", "key_ranges=h masked_nan=1 mask_region=60",
                             "query_ranges=bh batch=2 masked_nan=1 mask_region=60 leftpad_kv=1"}) {
      expect_right(std::string(dims) + mask);
    }
  }
}

TEST(EmulatedBackwardSm90, QueriesThatSeeNoKeyMayHoldNaNBesideASink) {
  for (const std::string& feature : idle_rows_beside_a_sink()) expect_right(feature);
}
TEST(EmulatedBackwardSm90, WideQueriesThatSeeNoKeyMayHoldNaNBesideASink) {
  for (const std::string& feature : idle_rows_beside_a_sink()) expect_right(kWide + feature);
}

// Gradients of slopes: dQ apart at any head dim.
TEST(EmulatedBackwardSm90, Slopes) {
  for (const char* slopes :
       {"alibi=h", "alibi=bh batch=2 packed_q=1 packed_kv=1", "head_dim_qk=128 head_dim_v=128 alibi=h gradients=a"}) {
    expect_right(slopes, 2);
  }
}

// Features that leave few registers beside three gradients.
TEST(EmulatedBackwardSm90, Many) {
  for (const char* features : {"head_dim_qk=96 softcap=2 dropout=0.3", "bias=bhqk dense=qk alibi=h gradients=qkvb"}) {
    expect_right(std::string("head_dim_qk=128 head_dim_v=128 ") + features);
  }
}

TEST(EmulatedBackwardSm90, Half) { expect_right("dtype=f16 window_right=0"); }

}  // namespace
}  // namespace tessella::tests
