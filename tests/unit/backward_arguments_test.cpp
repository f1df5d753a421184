// How many heads' key tiles backward on a GPU runs side by side.
#include <gtest/gtest.h>

#include "cases/arguments.hpp"
#include "cuda/kernels/backward_sm80/steps.hpp"

namespace {

using namespace tessella;
using core::Feature;

portable::BackwardSm80Config tiles_of_128_keys() {
  return {.head_dim_qk = 128, .head_dim_v = 128, .tile_q = 64, .tile_kv = 128, .num_warps = 8};
}

// Of 16 heads of 128 with 8192 keys, of which the L2 cache holds two.
int32_t section_heads(core::Features features, bool rows_grow,
                      const portable::BackwardSm80Config& config = tiles_of_128_keys()) {
  core::AttentionArguments p = tests::gpu_arguments({.batch = 1,
                                                     .heads_q = 16,
                                                     .heads_kv = 16,
                                                     .seqlen_q = 8192,
                                                     .seqlen_kv = 8192,
                                                     .head_dim_qk = 128,
                                                     .head_dim_v = 128});
  p.features = features;
  p.rows_grow = rows_grow;
  constexpr cuda::Concurrency kAtOnce = {.blocks = 132, .l2_bytes = int64_t{50} << 20};
  return cuda::backward_params(p, config, {}, kAtOnce).section_heads;
}

TEST(BackwardSections, FillTheGpuWithAKeyTileOfEachHead) { EXPECT_EQ(section_heads({}, false), 3); }

TEST(BackwardSections, AreWideWhereKeyTilesWaitForTheirTurn) {
  EXPECT_EQ(section_heads({}, true), 132 / 16);
  EXPECT_EQ(section_heads(Feature::query_ranges, true), 132 / 8);
  EXPECT_EQ(section_heads(Feature::mask_mod, true), 132 / 8);
}

TEST(BackwardSections, AreNarrowWithoutTurns) {
  portable::BackwardSm80Config config = tiles_of_128_keys();
  config.in_order = false;
  EXPECT_EQ(section_heads(Feature::query_ranges, true, config), 3);
  config = tiles_of_128_keys();
  config.slope_tile_q = 128;  // dQ has a kernel of its own
  EXPECT_EQ(section_heads(Feature::query_ranges, true, config), 3);
}

}  // namespace
