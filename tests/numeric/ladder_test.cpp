// The ladder's counts: what cost() says by formula is what a run moves, and who needs memory of N x N.
#include "reference/ladder/ladder.hpp"

#include <gtest/gtest.h>

#include <deque>

#include "cases/arguments.hpp"
#include "operations/attention/arguments.hpp"
#include "reference/check.hpp"
#include "reference/ladder/kv_head.hpp"

namespace tessella::tests {
namespace {

using core::Gradient;
using core::Name;
using reference::Algorithm;
using reference::BackwardAlgorithm;

const Algorithm* const kLadder[] = {&reference::kStandard,      &reference::kSafeSoftmax,    &reference::kOnlineSoftmax,
                                    &reference::kOnePass,       &reference::kFlash1,         &reference::kFlash2,
                                    &reference::kFlashDecoding, &reference::kFlashDecodingPp};

const Algorithm* const kDecodeLadder[] = {&reference::kFlashDecoding, &reference::kFlashDecodingPp};

const BackwardAlgorithm* const kBackwardLadder[] = {&reference::kStandardBackward, &reference::kFlashBackward};

template <typename AnyAlgorithm>
reference::Traffic counted(const AnyAlgorithm& algorithm, const core::AttentionArguments& p) {
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

class DecodeLadder : public testing::TestWithParam<const Algorithm*> {};

// One split, two, as many as there are, the last one short; no key at all, and queries that see none.
TEST_P(DecodeLadder, EveryNumberOfSplitsIsMergedRight) {
  for (const int64_t seqlen_kv : {0, 1, 102, 103, 104, 825, 1500}) {
    for (const int64_t seqlen_q : {1, 3, 70}) {
      for (const bool causal : {false, true}) {
        for (const float sink : {-INFINITY, 3.0F, 90.0F}) {
          OwnedArguments own({.heads_q = 4,
                              .heads_kv = 2,
                              .seqlen_q = seqlen_q,
                              .seqlen_kv = seqlen_kv,
                              .head_dim_qk = 32,
                              .head_dim_v = 40});
          if (causal) own.set_causal();
          own.set_sink(sink);
          counted(*GetParam(), own.arguments);
          const reference::CheckReport report = reference::check_forward(own.arguments, 64, 1);
          EXPECT_TRUE(report.passed) << seqlen_q << " queries, " << seqlen_kv << " keys, causal " << causal << ", sink "
                                     << sink << ": " << report.worst_got << ", expected " << report.worst_expected;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, DecodeLadder, testing::ValuesIn(kDecodeLadder), [](const auto& test) {
  const std::string name(test.param->name);
  return name.substr(name.find('.') + 1);
});

// Rows out of the guard's range are computed again, by as many bytes, and no others are.
struct Guarded {
  const char* name;
  int rows_again;
  void (*change)(OwnedArguments&);
};

class UnifiedMaximum : public testing::TestWithParam<Guarded> {
 protected:
  static constexpr int64_t kRows = 3, kKeys = 1500, kDim = 32;
  // Products of a row with every key.
  static void set_scores(OwnedArguments& own, int64_t row, float score) {
    for (int64_t c = 0; c < kDim; ++c) own.q[static_cast<size_t>(row * kDim + c)] = c == 0 ? score : 0;
    for (int64_t j = 0; j < kKeys; ++j) own.k[static_cast<size_t>(j * kDim)] = 1;
  }
};

TEST_P(UnifiedMaximum, RowsOutOfRangeAreComputedAgain) {
  OwnedArguments own({.seqlen_q = kRows, .seqlen_kv = kKeys, .head_dim_qk = kDim, .head_dim_v = kDim});
  for (int64_t row = 0; row < kRows; ++row) set_scores(own, row, static_cast<float>(row));
  GetParam().change(own);
  const reference::Traffic traffic = counted(reference::kFlashDecodingPp, own.arguments);
  EXPECT_TRUE(reference::check_forward(own.arguments, 0, 0).passed);
  const double again = sizeof(float) * kDim * (1 + 2 * kKeys);
  EXPECT_DOUBLE_EQ(traffic.bytes, reference::ladder_cost(reference::kFlashDecodingPp, own.arguments).bytes_moved +
                                      GetParam().rows_again * again);
}

constexpr size_t kDim = 32, kLast = 1499;

INSTANTIATE_TEST_SUITE_P(
    Scores, UnifiedMaximum,
    testing::Values(Guarded{"InRange", 0, [](OwnedArguments&) {}},
                    Guarded{"JustInRange", 0, [](OwnedArguments& own) { own.q[kDim] = 39.9F; }},
                    Guarded{"LowestInRange", 0, [](OwnedArguments& own) { own.q[kDim] = -39.9F; }},
                    Guarded{"OneRowAbove", 1, [](OwnedArguments& own) { own.q[kDim] = 40.1F; }},
                    Guarded{"OneRowBelow", 1, [](OwnedArguments& own) { own.q[kDim] = -40.1F; }},
                    Guarded{"WouldOverflow", 1, [](OwnedArguments& own) { own.q[kDim] = 1000; }},
                    Guarded{"WouldVanish", 1, [](OwnedArguments& own) { own.q[kDim] = -1000; }},
                    Guarded{"OneKeyOfTheLastSplit", 2, [](OwnedArguments& own) { own.k[kLast * kDim] = 60; }},
                    Guarded{"LargeValues", 0,
                            [](OwnedArguments& own) {
                              own.q[kDim] = 39;
                              for (float& value : own.v) value *= 1e28F;
                            }},
                    Guarded{"KeyThatIsNan", 3, [](OwnedArguments& own) { own.k[kLast * kDim] = NAN; }},
                    Guarded{"SinkAbove", 3, [](OwnedArguments& own) { own.set_sink(50); }},
                    Guarded{"SinkInRange", 0, [](OwnedArguments& own) { own.set_sink(5); }}),
    [](const auto& test) { return test.param.name; });

// A call of forward that ran, with d_out and memory for dq, dk and dv.
struct OwnedBackward : OwnedArguments {
  std::deque<std::vector<float>> gradients;

  explicit OwnedBackward(const Sizes& sizes, bool causal = false, float softcap = 0) : OwnedArguments(sizes) {
    if (causal) set_causal();
    if (softcap != 0) {
      arguments.features |= core::Feature::softcap;
      arguments.softcap = softcap;
    }
    counted(reference::kFlash2, arguments);
    arguments.operation = core::Operation::backward;
    for (const auto& [name, like] :
         {std::pair{Name::d_out, Name::out}, {Name::dq, Name::q}, {Name::dk, Name::k}, {Name::dv, Name::v}}) {
      arguments.tensors[name] = arguments.tensors[like];
      std::vector<float>& values =
          gradients.emplace_back(static_cast<size_t>(sizes.batch * arguments.tensors[like].batch_stride));
      arguments.tensors[name].data = reinterpret_cast<std::byte*>(values.data());
    }
    for (size_t n = 0; n < gradients[0].size(); ++n) gradients[0][n] = std::sin(static_cast<float>(n));
  }
};

class BackwardLadder : public testing::TestWithParam<const BackwardAlgorithm*> {};

TEST_P(BackwardLadder, CostIsWhatARunMoves) {
  const Sizes sizes{
      .batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 150, .seqlen_kv = 171, .head_dim_qk = 32, .head_dim_v = 40};
  for (const bool causal : {false, true}) {
    for (const float softcap : {0.0f, 3.0f}) {
      OwnedBackward own(sizes, causal, softcap);
      const reference::Traffic traffic = counted(*GetParam(), own.arguments);
      const core::Cost cost = reference::ladder_cost(*GetParam(), own.arguments);
      EXPECT_DOUBLE_EQ(traffic.bytes, cost.bytes_moved) << causal << softcap;
      EXPECT_TRUE(reference::check_backward(own.arguments, 0, 0).passed);
      if (causal) continue;  // as above
      EXPECT_DOUBLE_EQ(traffic.scores, cost.score_passes * 2 * 4 * 150 * 171);
    }
  }
  // What is not wanted is not computed; what is added is read too.
  for (const Name wanted : {Name::dq, Name::dk, Name::dv}) {
    OwnedBackward own(sizes);
    for (const Name other : {Name::dq, Name::dk, Name::dv}) {
      if (other != wanted) own.arguments.tensors[other].data = nullptr;
    }
    own.arguments.accumulate = static_cast<uint32_t>(wanted == Name::dq   ? Gradient::dq
                                                     : wanted == Name::dk ? Gradient::dk
                                                                          : Gradient::dv);
    const reference::Traffic traffic = counted(*GetParam(), own.arguments);
    EXPECT_DOUBLE_EQ(traffic.bytes, reference::ladder_cost(*GetParam(), own.arguments).bytes_moved);
  }
}

TEST_P(BackwardLadder, OnlyStandardNeedsNByN) {
  const auto extra = [](int64_t seqlen) {
    const OwnedArguments own({.seqlen_q = seqlen, .seqlen_kv = seqlen, .head_dim_qk = 64, .head_dim_v = 64});
    return reference::ladder_cost(*GetParam(), own.arguments).extra_bytes;
  };
  const double growth = extra(2048) / extra(1024);
  if (GetParam() == &reference::kStandardBackward) {
    EXPECT_GT(growth, 3.5);
  } else {
    EXPECT_LE(growth, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, BackwardLadder, testing::ValuesIn(kBackwardLadder), [](const auto& test) {
  const std::string name(test.param->name);
  return name.substr(name.find('.') + 1);
});

TEST(LadderOrder, RecomputationMovesLessThanStandard) {
  OwnedBackward own({.seqlen_q = 1024, .seqlen_kv = 1024, .head_dim_qk = 64, .head_dim_v = 64});
  EXPECT_LT(reference::ladder_cost(reference::kFlashBackward, own.arguments).bytes_moved,
            reference::ladder_cost(reference::kStandardBackward, own.arguments).bytes_moved);
}

// What the papers promise: flash-1 and flash-2 move less than standard attention once N is well above the tile.
TEST(LadderOrder, FlashMovesLessThanStandard) {
  const OwnedArguments own({.seqlen_q = 1024, .seqlen_kv = 1024, .head_dim_qk = 64, .head_dim_v = 64});
  const auto bytes = [&](const Algorithm& algorithm) {
    return reference::ladder_cost(algorithm, own.arguments).bytes_moved;
  };
  EXPECT_LT(bytes(reference::kFlash2), bytes(reference::kFlash1));
  EXPECT_LT(bytes(reference::kFlash2), bytes(reference::kFlashDecoding));  // the splits' states, for many queries
  EXPECT_LT(bytes(reference::kFlash2), bytes(reference::kStandard) / 2);
  EXPECT_LT(bytes(reference::kStandard), bytes(reference::kSafeSoftmax));
  EXPECT_LT(bytes(reference::kOnePass), bytes(reference::kOnlineSoftmax));
}

}  // namespace
}  // namespace tessella::tests
