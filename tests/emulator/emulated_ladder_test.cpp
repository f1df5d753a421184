// The ladder's kernels on the CPU (emulator.hpp): against the reference, and that a row depends on nothing beside it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cases/part.hpp"
#include "cuda/kernels/ladder/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

struct Rung {
  const char* name;
  MakeRecipe recipe;
};
class EmulatedLadder : public testing::TestWithParam<Rung> {
 protected:
  static std::string run(Call& call, const Case&) { return run_recipe(call, GetParam().recipe, 0, 1); }
};

TEST_P(EmulatedLadder, IsRight) {
  Case base = {.dtype = "f32", .batch = 2, .heads_q = 2, .seqlen_q = 70, .seqlen_kv = 100, .seed = 3};
  base.head_dim_qk = base.head_dim_v = 32;
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case&) {}, [](Case& c) { c.window_right = 0; }, [](Case& c) { c.window_left = 40, c.sink = true; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = true; },
           [](Case& c) { c.cache_batch_idx = true, c.draft_mask = "b"; },
           [](Case& c) { c.window_right = 0, c.seqlen_kv = 30; }, [](Case& c) { c.dropout = 0.3; },
           [](Case& c) { c.dropout = 0.9999, c.memory_seed = true; }}) {
    Case c = base;
    change(c);
    Call call(c);
    EXPECT_EQ(run(call, c), "");
    EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
  }
}

TEST_P(EmulatedLadder, BandsWithHoles) {
  for (const char* mask : kBandsWithHoles) {
    const Case c = parse("dtype=f32 heads_q=2 masked_nan=1 seed=1 " + std::string(mask));
    Call call(c);
    EXPECT_EQ(run(call, c), "");
    EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
  }
}

TEST_P(EmulatedLadder, BatchInvariant) {
  Case c = {.dtype = "f32", .seqlen_q = 110, .seqlen_kv = 150, .spread = 8, .batch_invariant = true, .seed = 1};
  c.head_dim_qk = c.head_dim_v = 32;
  for (const int64_t window_right : {-1, 0}) {
    c.window_right = window_right;
    EXPECT_EQ(check_parts({c}, run), "") << "--case \"" << to_string(c) << "\"";
  }
}

INSTANTIATE_TEST_SUITE_P(Rungs, EmulatedLadder,
                         testing::Values(Rung{"standard", cuda::standard_recipe},
                                         Rung{"flash_1", cuda::flash_1_recipe}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessella::tests
