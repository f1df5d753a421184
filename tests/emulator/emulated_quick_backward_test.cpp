// What goes wrong in backward_sm80 first: a test each for its turns at dQ, its barriers, what it clears and what it
// might forget, in seconds. Each names what it catches in mutations*.py.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/backward_features.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// Right under every schedule, and of the same bits. Two heads on one, three tiles of queries and four of keys: blocks
// run in pairs, and those of a pair take turns at the same queries.
void expect_right(const std::string& features, uint64_t num_schedules = 4) {
  const Case c = with_feature(
      "dtype=bf16 heads_q=2 heads_kv=1 seqlen_q=150 seqlen_kv=500 head_dim_qk=32 head_dim_v=32 seed=1", features);
  std::vector<std::byte> first;
  for (uint64_t seed = 1; seed <= num_schedules; ++seed) {
    BackwardCall call(c);
    ASSERT_EQ(run_backward(call, cuda::backward_sm80_recipe, c.max_seqlen, seed), "") << to_string(c);
    ASSERT_EQ(call.check(), "") << to_string(c);
    if (first.empty()) first = call.results();
    ASSERT_TRUE(call.results() == first) << "other bits under schedule " << seed << ", " << to_string(c);
  }
}

TEST(EmulatedQuickBackward, Turns) { expect_right(""); }

// Tiles of queries whose first tile of keys is not the first of all.
TEST(EmulatedQuickBackward, Windows) { expect_right("window_left=60 window_right=0"); }

// The first 50 queries see no key, and their gradients are NaN.
TEST(EmulatedQuickBackward, DeadRows) { expect_right("window_right=0 seqlen_kv=100"); }

TEST(EmulatedQuickBackward, UnseenKeys) { expect_right("masked_nan=1 dense=k window_right=0"); }

TEST(EmulatedQuickBackward, Ranges) {
  expect_right("masked_nan=1 key_ranges=h mask_region=40", 2);
  expect_right("masked_nan=1 query_ranges=1 mask_region=40", 2);
}

// Queries that see no key, with a finite LSE.
TEST(EmulatedQuickBackward, DeadRowsBesideASink) { expect_right("masked_nan=1 dense=qk sink=1"); }

TEST(EmulatedQuickBackward, Slopes) { expect_right("alibi=h"); }

TEST(EmulatedQuickBackward, Options) {
  expect_right("softcap=2", 1);
  expect_right("scale=-0.3 sink=1", 1);
}

}  // namespace
}  // namespace tessella::tests
