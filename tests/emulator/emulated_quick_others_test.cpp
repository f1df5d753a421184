// A case or two of each kernel that no other quick suite has: its long suite is not run with every change.
#include <gtest/gtest.h>

#include <string>

#include "cases/backward_features.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "cuda/kernels/ladder/recipe.hpp"
#include "emulated_case.hpp"

namespace tessella::tests {
namespace {

TEST(EmulatedQuickOthers, ForwardSm80) {
  for (const int window_right : {-1, 0}) {
    Case c = base(32, 32);
    c.window_right = window_right;
    c.seqlens_kv = true;
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
  }
}

void expect_right_gradients(const std::string& sizes,
                            cuda::Recipe (*recipe_of)(const core::Shape&, const cuda::DeviceInfo&)) {
  const Case c = with_feature("dtype=bf16 heads_q=2 heads_kv=1 seqlen_q=150 seed=1 " + sizes, "window_right=0 sink=1");
  BackwardCall call(c);
  ASSERT_EQ(run_backward(call, recipe_of, c.max_seqlen, 1), "") << to_string(c);
  EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
}

TEST(EmulatedQuickOthers, BackwardSm90) {
  expect_right_gradients("seqlen_kv=500 head_dim_qk=64 head_dim_v=64", cuda::backward_sm90_recipe);
}

TEST(EmulatedQuickOthers, StandardBackward) {
  expect_right_gradients("seqlen_kv=150 head_dim_qk=32 head_dim_v=32", cuda::standard_backward_recipe);
}

// NaN in queries that see no key, and in keys between those of two queries, which none sees.
TEST(EmulatedQuickOthers, BandsWithHoles) {
  for (const char* mask : kBandsWithHoles) {
    const Case c = parse("dtype=bf16 heads_q=2 heads_kv=1 masked_nan=1 seed=1 " + std::string(mask));
    EXPECT_EQ(run_sm90(c, 1), "") << "--case \"" << to_string(c) << "\"";
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
    for (const MakeRecipe recipe :
         {cuda::backward_sm90_recipe, cuda::backward_sm80_recipe, cuda::standard_backward_recipe}) {
      BackwardCall call(with_feature("dtype=bf16 heads_q=2 heads_kv=1 masked_nan=1 sink=1 seed=1", mask));
      ASSERT_EQ(run_backward(call, recipe, 0, 1), "") << to_string(c);
      EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
    }
  }
}

// -1 in the table for pages behind a window, whose tiles the kernels load from page 0: it holds NaN.
TEST(EmulatedQuickOthers, EvictedPages) {
  for (const char* size : {"page_size=8", "page_size=64"}) {
    const Case c = parse(
        "dtype=bf16 batch=2 heads_q=2 heads_kv=1 seqlen_q=20 seqlen_kv=400 head_dim_qk=64 head_dim_v=64 seqlens_kv=1 "
        "window_left=40 window_right=0 keep_first=2 masked_nan=1 seed=1 " +
        std::string(size));
    EXPECT_EQ(run_sm90(c, 1), "") << "--case \"" << to_string(c) << "\"";
    EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
  }
}

}  // namespace
}  // namespace tessella::tests
