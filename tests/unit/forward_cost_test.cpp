// What the GPU's algorithms move, by hand for one head, and in proportion for others.
#include "cuda/launch/forward_cost.hpp"

#include <gtest/gtest.h>

#include "cases/arguments.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/query_tiles.hpp"

namespace {

using namespace tessella;
using core::AttentionArguments;
using core::Cost;
using core::Feature;

AttentionArguments problem(int64_t seqlen, int64_t heads = 1) {
  return tests::gpu_arguments({.heads_q = heads,
                               .heads_kv = heads,
                               .seqlen_q = seqlen,
                               .seqlen_kv = seqlen,
                               .head_dim_qk = 64,
                               .head_dim_v = 64});
}

constexpr portable::ForwardSm80Config kConfig{
    .head_dim_qk = 64, .head_dim_v = 64, .tile_q = 64, .tile_kv = 32, .num_warps = 4};

TEST(ForwardCost, IsWhatTheLoopsMove) {
  const AttentionArguments p = problem(256);  // 4 tiles of queries, 8 of keys
  const double row = 64 * 2;
  const Cost forward = cuda::forward_cost(p, kConfig);
  EXPECT_EQ(forward.score_passes, 1);
  EXPECT_EQ(forward.bytes_moved, 256 * 2 * row + 4 * 256 * 2 * row);
  EXPECT_EQ(forward.extra_bytes, 0);
  const Cost standard = cuda::standard_cost(p, kConfig);
  EXPECT_EQ(standard.score_passes, 4);
  EXPECT_EQ(standard.bytes_moved, 8 * 256 * row + 4 * 256 * 2 * row + 5 * 4 * 256 * 256 + 256 * row);
  EXPECT_EQ(standard.extra_bytes, 256 * 256 * 4);
  const Cost flash_1 = cuda::flash_1_cost(p, kConfig);
  const double state = 66 * 4;
  EXPECT_EQ(flash_1.score_passes, 1);
  EXPECT_EQ(flash_1.bytes_moved, 256 * 2 * row + 8 * 256 * (row + 2 * state) + 2 * 256 * state + 256 * row);
  EXPECT_EQ(flash_1.extra_bytes, 256 * state);
}

TEST(BackwardCost, IsWhatTheLoopsMove) {
  AttentionArguments p = problem(256);  // 4 tiles of queries, 8 of keys
  std::byte memory{};
  for (const core::Name name : {core::Name::dq, core::Name::dk, core::Name::dv}) {
    p.tensors[name] = p.tensors[core::Name::q];
    p.tensors[name].data = &memory;
  }
  constexpr portable::BackwardSm80Config kBackward{
      .head_dim_qk = 64, .head_dim_v = 64, .tile_q = 64, .tile_kv = 32, .num_warps = 4};
  const double row = 64 * 2, query = 16, sums = 64 * 4, matrix = 256 * 256 * 2;
  const double first_step = 256 * (2 * row + 4 + query), results = 256 * 3 * row;
  const Cost flash = cuda::backward_cost(p, kBackward, 77);
  EXPECT_EQ(flash.score_passes, 1);
  EXPECT_EQ(flash.bytes_moved, first_step + 256 * 2 * row + 8 * 256 * (2 * row + query + 2 * sums) + results);
  EXPECT_EQ(flash.extra_bytes, 77);
  const Cost standard = cuda::standard_backward_cost(p, kBackward, 77);
  EXPECT_EQ(standard.score_passes, 3);
  EXPECT_EQ(standard.bytes_moved,
            first_step + 256 * 2 * row + 2 * 8 * 256 * (2 * row + query) + 5 * matrix + 4 * 256 * row + results);
  EXPECT_EQ(cuda::standard_backward_bytes(p, kBackward), 2 * matrix);
  p.features = Feature::window;
  p.window_right = 0;
  EXPECT_LT(cuda::backward_cost(p, kBackward, 0).bytes_moved, 0.7 * flash.bytes_moved);
  EXPECT_EQ(cuda::standard_backward_cost(p, kBackward, 0).bytes_moved, standard.bytes_moved);
}

TEST(ForwardCost, OnlyStandardNeedsNByN) {
  const auto growth = [](auto cost) {
    return cost(problem(8192), kConfig).extra_bytes / cost(problem(4096), kConfig).extra_bytes;
  };
  EXPECT_EQ(growth(cuda::standard_cost), 4);
  EXPECT_EQ(growth(cuda::flash_1_cost), 2);
}

// Every query is in one tile; of tiles of 192 the first is short.
TEST(ForwardCost, TilesHoldEveryQueryOnce) {
  for (const int tile_q : {16, 64, 128, 192}) {
    for (int64_t len_q = 0; len_q < 1000; ++len_q) {
      int64_t next = 0;
      for (int64_t tile = 0; tile < len_q / tile_q + 3; ++tile) {
        const auto [first, end] = portable::tile_queries(len_q, tile_q, tile);
        if (first >= end) {
          ASSERT_GE(first, len_q);
          continue;
        }
        ASSERT_EQ(first, next);
        ASSERT_EQ(first % (tile_q == 192 ? 64 : tile_q), 0);
        ASSERT_LE(end - first, tile_q);
        ASSERT_TRUE(tile == 0 || end == len_q || end - first == tile_q);
        next = end;
      }
      ASSERT_EQ(next, len_q) << "tiles of " << tile_q;
    }
  }
  EXPECT_EQ(portable::tile_queries(512, 192, 0).end, 128);
}

TEST(ForwardCost, FollowsTheBandAndTheHeads) {
  AttentionArguments p = problem(4096, 3);
  const Cost all = cuda::forward_cost(p, kConfig);
  EXPECT_EQ(all.bytes_moved, 3 * cuda::forward_cost(problem(4096), kConfig).bytes_moved);
  p.features = Feature::window;
  p.window_right = 0;
  const double causal = cuda::forward_cost(p, kConfig).bytes_moved / all.bytes_moved;
  EXPECT_GT(causal, 0.5);
  EXPECT_LT(causal, 0.53);
  p.window_left = 127;
  p.keep_first = 4;
  p.features |= Feature::keep_first;
  EXPECT_LT(cuda::forward_cost(p, kConfig).bytes_moved, 0.1 * all.bytes_moved);
  EXPECT_EQ(cuda::standard_cost(p, kConfig).bytes_moved, cuda::standard_cost(problem(4096, 3), kConfig).bytes_moved);
}

TEST(ForwardCost, SlicesComputeScoresAgain) {
  AttentionArguments p = problem(256);
  p.head_dim_v = 512;
  const portable::ForwardSm80Config config = cuda::forward_sm80_config(p, cuda::typical_device(90));
  EXPECT_EQ(cuda::forward_cost(p, config).score_passes, 2);
  EXPECT_EQ(cuda::standard_cost(p, config).score_passes, 5);
}

}  // namespace
