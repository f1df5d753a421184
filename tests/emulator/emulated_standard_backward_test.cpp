// cuda.standard_backward in the emulator: against the reference, with every feature.
#include <gtest/gtest.h>

#include <string>

#include "cases/backward_features.hpp"
#include "cuda/kernels/ladder/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Tiles of 64 queries and 128 keys: two and two of a sequence, the last ones not whole.
constexpr const char* kSizes =
    "dtype=bf16 batch=2 heads_q=2 heads_kv=1 seqlen_q=70 seqlen_kv=150 head_dim_qk=32 head_dim_v=32 seed=1";

void expect_right(const Case& c) {
  BackwardCall call(c);
  ASSERT_EQ(run_backward(call, cuda::standard_backward_recipe, c.max_seqlen, 1), "")
      << "--case \"" << to_string(c) << "\"";
  EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
}

TEST(EmulatedStandardBackward, EachFeature) {
  for (const std::string& feature : backward_features()) expect_right(with_feature(kSizes, feature));
}

TEST(EmulatedStandardBackward, DTypesAndHeadDims) {
  for (const char* sizes :
       {"dtype=f16 head_dim_qk=128 head_dim_v=128", "dtype=f32", "head_dim_qk=192 head_dim_v=100"}) {
    expect_right(with_feature(kSizes, std::string(sizes) + " window_right=0 dropout=0.3"));
  }
}

TEST(EmulatedStandardBackward, UnseenKeysAndQueriesMayHoldNaN) {
  for (const char* feature : {"masked_nan=1 causal_top_left=1", "masked_nan=1 dense=k", "masked_nan=1 document=1",
                              "masked_nan=1 key_ranges=1 mask_region=20", "masked_nan=1 query_ranges=h"}) {
    expect_right(with_feature(kSizes, feature));
  }
}

TEST(EmulatedStandardBackward, QueriesThatSeeNoKeyMayHoldNaNBesideASink) {
  for (const std::string& feature : idle_rows_beside_a_sink()) expect_right(with_feature(kSizes, feature));
}

// Few rows of wide heads: sums of dQ, if somebody cleared some, would reach beyond the matrices.
TEST(EmulatedStandardBackward, InAnyOrder) {
  expect_right(
      with_feature(kSizes, "need_not_be_deterministic=1 seqlen_q=9 seqlen_kv=6 head_dim_qk=256 head_dim_v=256"));
}

TEST(EmulatedStandardBackward, PartsOfIt) {
  for (const char* wanted : {"q", "k", "v", "a", "b", "s", "qk"}) {
    Case c = with_feature(kSizes, "alibi=h bias=hk sink=1 max_seqlen=700 gradients_f32=1");
    c.gradients = wanted;
    expect_right(c);
  }
}

}  // namespace
}  // namespace tessella::tests
