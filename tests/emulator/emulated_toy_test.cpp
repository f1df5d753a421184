// A recipe of two steps in the emulator.
#include <gtest/gtest.h>

#include "emulated_run.hpp"
#include "toy/toy_recipe.hpp"

namespace tessella::tests {
namespace {

TEST(EmulatedToy, BothStepsOrTheFirstAlone) {
  for (const int64_t seqlen_kv : {1, 0}) {
    Case c = {
        .dtype = "f32", .batch = 2, .heads_q = 3, .heads_kv = 3, .seqlen_q = 5, .seqlen_kv = seqlen_kv, .lse = false};
    c.head_dim_qk = c.head_dim_v = 40;
    Call call(c);
    EXPECT_EQ(run_recipe(call, toy_recipe, 1, 1), "");
    EXPECT_EQ(call.check(), "") << to_string(c);
  }
  Call call({.dtype = "f32", .seqlen_kv = 2});
  EXPECT_EQ(run_recipe(call, toy_recipe, 0, 1), "sees one key");
}

}  // namespace
}  // namespace tessella::tests
