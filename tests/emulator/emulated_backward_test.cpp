// cuda.backward_sm80 in the emulator, as a call on a GPU runs it.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cases/backward_features.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Tiles of 64 queries and 128 keys: three and two of a sequence, none of them whole at the end.
constexpr const char* kSizes =
    "dtype=bf16 batch=2 heads_q=2 heads_kv=1 seqlen_q=150 seqlen_kv=210 head_dim_qk=32 head_dim_v=32 seed=1";

std::string run(const Case& c, uint64_t seed, std::vector<std::byte>* results = nullptr) {
  BackwardCall call(c);
  const std::string message = run_backward(call, cuda::backward_sm80_recipe, c.max_seqlen, seed);
  if (!message.empty()) return message;
  if (results != nullptr) *results = call.results();
  return call.check();
}

void expect_right(const Case& c, uint64_t seed = 1) {
  EXPECT_EQ(run(c, seed), "") << "--case \"" << to_string(c) << "\"";
}

TEST(EmulatedBackward, EachFeature) {
  uint64_t seed = 1;
  for (const std::string& feature : backward_features()) expect_right(with_feature(kSizes, feature), seed++);
}

TEST(EmulatedBackward, HeadDims) {
  for (const char* sizes : {"head_dim_qk=64 head_dim_v=64", "head_dim_qk=96 head_dim_v=80",
                            "head_dim_qk=128 head_dim_v=128", "head_dim_qk=192 head_dim_v=128",
                            "head_dim_qk=256 head_dim_v=256 seqlen_q=100", "head_dim_qk=24 head_dim_v=100"}) {
    expect_right(with_feature(kSizes, std::string(sizes) + " window_right=0"));
  }
}

TEST(EmulatedBackward, DTypes) {
  for (const char* dtype : {"dtype=f16", "dtype=f32", "dtype=f32 head_dim_qk=128 head_dim_v=64"}) {
    expect_right(with_feature(kSizes, std::string(dtype) + " window_right=0 dropout=0.3"));
  }
}

// One order of all sums, whatever comes first: the same bits.
TEST(EmulatedBackward, TheSameBitsUnderEverySchedule) {
  const Case c = with_feature(kSizes, "window_right=0 alibi=h seqlen_kv=500");
  std::vector<std::byte> first, again;
  EXPECT_EQ(run(c, 1, &first), "");
  for (const uint64_t seed : {2, 3, 4, 5}) {
    EXPECT_EQ(run(c, seed, &again), "");
    EXPECT_EQ(first, again) << seed;
  }
}

TEST(EmulatedBackward, UnseenKeysAndQueriesMayHoldNaN) {
  for (const char* feature : {"masked_nan=1 causal_top_left=1", "masked_nan=1 dense=k", "masked_nan=1 document=1",
                              "masked_nan=1 key_ranges=1 mask_region=20", "masked_nan=1 query_ranges=h"}) {
    expect_right(with_feature(kSizes, feature));
  }
}

TEST(EmulatedBackward, QueriesThatSeeNoKeyMayHoldNaNBesideASink) {
  for (const std::string& feature : idle_rows_beside_a_sink()) expect_right(with_feature(kSizes, feature));
}

TEST(EmulatedBackward, InAnyOrder) {
  for (const uint64_t seed : {1, 2, 3})
    expect_right(with_feature(kSizes, "window_right=0 need_not_be_deterministic=1"), seed);
}

// A plan for longer sequences, and gradients of which only some are wanted.
TEST(EmulatedBackward, PartsOfIt) {
  for (const char* wanted : {"q", "k", "v", "a", "b", "s", "qk"}) {
    Case c = with_feature(kSizes, "alibi=h bias=hk sink=1 max_seqlen=700 gradients_f32=1");
    c.gradients = wanted;
    expect_right(c);
  }
}

}  // namespace
}  // namespace tessella::tests
