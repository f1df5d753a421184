// The ladder's counts: what cost() says by formula is what a run moves, and who needs memory of N x N.
#include "reference/ladder/ladder.hpp"

#include <gtest/gtest.h>

#include "cases/arguments.hpp"
#include "reference/check.hpp"

namespace tessella::tests {
namespace {

using reference::Algorithm;

const Algorithm* const kLadder[] = {&reference::kStandard, &reference::kSafeSoftmax, &reference::kOnlineSoftmax,
                                    &reference::kOnePass,  &reference::kFlash1,      &reference::kFlash2};

reference::Traffic counted(const Algorithm& algorithm, const core::AttentionArguments& p) {
  std::vector<std::byte> scratch(static_cast<size_t>(reference::ladder_workspace(algorithm, p, 1).scratch_bytes));
  reference::Traffic traffic;
  reference::ladder_run(algorithm, p, 1, scratch.data(), &traffic);
  return traffic;
}

class Ladder : public testing::TestWithParam<const Algorithm*> {};

TEST_P(Ladder, CostIsWhatARunMoves) {
  for (const bool causal : {false, true}) {
    OwnedArguments own({.batch = 2,
                        .heads_q = 2,
                        .heads_kv = 1,
                        .seqlen_q = 150,
                        .seqlen_kv = 171,
                        .head_dim_qk = 32,
                        .head_dim_v = 40});
    if (causal) own.set_causal();
    const reference::Traffic traffic = counted(*GetParam(), own.arguments);
    const core::Cost cost = reference::ladder_cost(*GetParam(), own.arguments);
    EXPECT_DOUBLE_EQ(traffic.bytes, cost.bytes_moved);
    EXPECT_TRUE(reference::check_forward(own.arguments, 0, 0).passed);
    if (causal) continue;  // tiles and matrices hold masked scores too
    EXPECT_DOUBLE_EQ(traffic.scores, cost.score_passes * 2 * 2 * 150 * 171);
  }
}

TEST_P(Ladder, OnlyStandardNeedsNByN) {
  const auto extra = [](int64_t seqlen) {
    const OwnedArguments own({.seqlen_q = seqlen, .seqlen_kv = seqlen, .head_dim_qk = 64, .head_dim_v = 64});
    return reference::ladder_cost(*GetParam(), own.arguments).extra_bytes;
  };
  const double growth = extra(2048) / extra(1024);
  if (GetParam() == &reference::kStandard) {
    EXPECT_GT(growth, 3.5);
  } else {
    EXPECT_LE(growth, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Ladder, testing::ValuesIn(kLadder), [](const auto& test) {
  const std::string name(test.param->name);
  return name.substr(name.find('.') + 1);
});

// What the papers promise: flash-1 and flash-2 move less than standard attention once N is well above the tile.
TEST(LadderOrder, FlashMovesLessThanStandard) {
  const OwnedArguments own({.seqlen_q = 1024, .seqlen_kv = 1024, .head_dim_qk = 64, .head_dim_v = 64});
  const auto bytes = [&](const Algorithm& algorithm) {
    return reference::ladder_cost(algorithm, own.arguments).bytes_moved;
  };
  EXPECT_LT(bytes(reference::kFlash2), bytes(reference::kFlash1));
  EXPECT_LT(bytes(reference::kFlash2), bytes(reference::kStandard) / 2);
  EXPECT_LT(bytes(reference::kStandard), bytes(reference::kSafeSoftmax));
  EXPECT_LT(bytes(reference::kOnePass), bytes(reference::kOnlineSoftmax));
}

}  // namespace
}  // namespace tessella::tests
