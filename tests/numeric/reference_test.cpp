// The oracle against cases computed by hand and against what attention must satisfy whatever the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cases/arguments.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/dropout.hpp"

namespace tessella::tests {
namespace {

using core::Feature;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Two keys whose scores are s0, s1 (q = 1, k = score) and whose values are 1 and 0: the output is the first weight.
void two_keys(OwnedArguments& own, float s0, float s1) {
  own.q = {1};
  own.k = {s0, s1};
  own.v = {1, 0};
  own.arguments.q().data = reinterpret_cast<std::byte*>(own.q.data());
  own.arguments.k().data = reinterpret_cast<std::byte*>(own.k.data());
  own.arguments.v().data = reinterpret_cast<std::byte*>(own.v.data());
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Reference, OneKeyIsItsValue) {
  OwnedArguments own({.head_dim_qk = 3, .head_dim_v = 2});
  const Row row = reference_row(own.arguments);
  EXPECT_DOUBLE_EQ(row.out[0], own.v[0]);
  EXPECT_DOUBLE_EQ(row.out[1], own.v[1]);
  const double score = std::inner_product(own.q.begin(), own.q.end(), own.k.begin(), 0.0, std::plus<>(),
                                          [](double a, double b) { return a * b; });
  EXPECT_DOUBLE_EQ(row.lse, score);
}

TEST(Reference, EqualScoresAverage) {
  OwnedArguments own({.seqlen_kv = 4});
  std::fill(own.k.begin(), own.k.end(), 0.0f);
  std::copy_n(std::begin({1.0f, 2.0f, 3.0f, 6.0f}), 4, own.v.begin());
  const Row row = reference_row(own.arguments);
  EXPECT_DOUBLE_EQ(row.out[0], 3);
  EXPECT_DOUBLE_EQ(row.lse, std::log(4.0));
}

TEST(Reference, TwoKeysAreASigmoid) {
  OwnedArguments own({.seqlen_kv = 2});
  two_keys(own, 2.0f, 0.5f);
  own.arguments.scale = 2;
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).out[0], sigmoid(3));
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).lse, std::log(std::exp(4.0) + std::exp(1.0)));
}

TEST(Reference, CausalTwoByThree) {
  OwnedArguments own({.seqlen_q = 2, .seqlen_kv = 3});
  own.set_causal();
  std::fill(own.k.begin(), own.k.end(), 0.0f);
  std::copy_n(std::begin({3.0f, 5.0f, 10.0f}), 3, own.v.begin());
  EXPECT_DOUBLE_EQ(reference_row(own.arguments, 0).out[0], 4);  // keys 0 and 1
  EXPECT_DOUBLE_EQ(reference_row(own.arguments, 1).out[0], 6);  // all
}

TEST(Reference, SinkJoinsTheSumOnly) {
  OwnedArguments own({.seqlen_kv = 2});
  two_keys(own, 1.0f, 0.0f);
  own.set_sink(0.5f);
  const double sum = std::exp(1.0) + 1 + std::exp(0.5);
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).out[0], std::exp(1.0) / sum);
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).lse, std::log(sum));
}

TEST(Reference, SoftcapBeforeBias) {
  OwnedArguments own({.seqlen_kv = 2});
  two_keys(own, 40.0f, -3.0f);
  own.arguments.features |= Feature::softcap;
  own.arguments.softcap = 2;
  own.set_bias({-1.5f, 0.25f}, 0);
  const double s0 = 2 * std::tanh(20.0) - 1.5;
  const double s1 = 2 * std::tanh(-1.5) + 0.25;
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).out[0], sigmoid(s0 - s1));
}

TEST(Reference, AlibiCountsFromTheBottomRight) {
  OwnedArguments own({.heads_q = 2, .heads_kv = 1, .seqlen_q = 1, .seqlen_kv = 2});
  own.q = {1, 1};
  own.k = {0, 0};
  own.v = {1, 0};
  for (core::Operand* operand : {&own.arguments.q(), &own.arguments.k(), &own.arguments.v()}) {
    auto& values = operand == &own.arguments.q() ? own.q : operand == &own.arguments.k() ? own.k : own.v;
    operand->data = reinterpret_cast<std::byte*>(values.data());
  }
  own.slopes = {0.5f, 2.0f};
  own.arguments.features |= Feature::alibi;
  own.arguments.alibi_slopes = {own.slopes.data(), 0, 1};
  // The only query stands at key 1: distances 1 and 0.
  EXPECT_DOUBLE_EQ(reference_row(own.arguments, 0, 0).out[0], sigmoid(-0.5));
  EXPECT_DOUBLE_EQ(reference_row(own.arguments, 0, 1).out[0], sigmoid(-2.0));
}

TEST(Reference, EmptyRows) {
  OwnedArguments own({.seqlen_q = 3, .seqlen_kv = 1});
  own.set_causal();
  EXPECT_EQ(reference_row(own.arguments, 0).out[0], 0);
  EXPECT_EQ(reference_row(own.arguments, 0).lse, -kInf);
  own.set_sink(0.75f);
  EXPECT_EQ(reference_row(own.arguments, 0).out[0], 0);
  EXPECT_DOUBLE_EQ(reference_row(own.arguments, 0).lse, 0.75);

  OwnedArguments none({.seqlen_q = 1, .seqlen_kv = 0});
  EXPECT_EQ(reference_row(none.arguments).out[0], 0);
  EXPECT_EQ(reference_row(none.arguments).lse, -kInf);
}

TEST(Reference, MinusInfinityInTheBiasHides) {
  OwnedArguments own({.seqlen_kv = 3});
  const float hidden = -std::numeric_limits<float>::infinity();
  own.set_bias({hidden, 0, hidden}, 0);
  own.v[0] = own.v[2] = NAN;
  EXPECT_DOUBLE_EQ(reference_row(own.arguments).out[0], own.v[1]);
  own.set_bias({hidden, hidden, hidden}, 0);
  EXPECT_EQ(reference_row(own.arguments).out[0], 0);
  EXPECT_EQ(reference_row(own.arguments).lse, -kInf);
}

TEST(Reference, HiddenKeysAreNeverRead) {
  OwnedArguments own({.seqlen_q = 2, .seqlen_kv = 3, .head_dim_qk = 4, .head_dim_v = 4});
  own.set_causal();
  const Row before = reference_row(own.arguments, 0);
  std::fill(own.k.begin() + 8, own.k.end(), NAN);
  std::fill(own.v.begin() + 8, own.v.end(), NAN);
  EXPECT_EQ(reference_row(own.arguments, 0).out, before.out);
  EXPECT_TRUE(std::isnan(reference_row(own.arguments, 1).out[0]));  // a visible NaN shows
}

TEST(Reference, GroupedHeadsShareKeys) {
  OwnedArguments own({.heads_q = 4, .heads_kv = 2, .seqlen_kv = 5, .head_dim_qk = 3, .head_dim_v = 3});
  std::copy_n(own.q.begin(), 3, own.q.begin() + 3);  // heads 0 and 1 ask the same of KV head 0
  std::copy_n(own.q.begin(), 3, own.q.begin() + 6);  // head 2 asks it of KV head 1
  EXPECT_EQ(reference_row(own.arguments, 0, 0).out, reference_row(own.arguments, 0, 1).out);
  EXPECT_NE(reference_row(own.arguments, 0, 0).out, reference_row(own.arguments, 0, 2).out);
}

TEST(Reference, DropoutKeepsTheSumAndScalesWhatStays) {
  OwnedArguments own({.batch = 2, .heads_q = 3, .heads_kv = 1, .seqlen_q = 4, .seqlen_kv = 20});
  std::fill(own.k.begin(), own.k.end(), 0.0f);
  own.arguments.features |= Feature::dropout;
  own.arguments.dropout = 0.25f;
  own.arguments.seed = 9;
  own.arguments.offset = 3;
  const portable::Dropout mask{.seed = 9, .offset = 3, .threshold = 16384};
  double expected = 0;
  for (int64_t j = 0; j < 20; ++j) {
    if (mask.keeps(1 * 3 + 2, 3, j)) expected += own.v[static_cast<size_t>(20 + j)] / 20.0 / 0.75;
  }
  const Row row = reference_row(own.arguments, 3, 2, 1);
  EXPECT_NEAR(row.out[0], expected, 1e-14);
  EXPECT_DOUBLE_EQ(row.lse, std::log(20.0));
}

TEST(Reference, DropoutKeepsTheExpectation) {
  OwnedArguments own({.seqlen_q = 1, .seqlen_kv = 64, .head_dim_qk = 4});
  const double without = reference_row(own.arguments).out[0];
  own.arguments.features |= Feature::dropout;
  own.arguments.dropout = 0.3f;
  double mean = 0, square = 0;
  constexpr int kTrials = 4000;
  for (int trial = 0; trial < kTrials; ++trial) {
    own.arguments.seed = static_cast<uint64_t>(trial);
    const double out = reference_row(own.arguments).out[0];
    mean += out / kTrials;
    square += out * out / kTrials;
  }
  EXPECT_NEAR(mean, without, 5 * std::sqrt((square - mean * mean) / kTrials));
}

// Attention states of disjoint keys merge by their LSE: L = log(e^La + e^Lb), o = e^(La - L) oa + e^(Lb - L) ob.
TEST(Reference, HalvesMergeToTheWhole) {
  OwnedArguments own({.seqlen_kv = 30, .head_dim_qk = 8, .head_dim_v = 5}, 2);
  const Row whole = reference_row(own.arguments);
  const auto part = [&](int64_t first, int64_t count) {
    core::AttentionArguments p = own.arguments;
    p.seqlen_kv = p.total_kv = count;
    p.k().data += first * 8 * 4;
    p.v().data += first * 5 * 4;
    return reference_row(p);
  };
  const Row a = part(0, 11), b = part(11, 19);
  const double lse = std::log(std::exp(a.lse) + std::exp(b.lse));
  EXPECT_NEAR(lse, whole.lse, 1e-13);
  for (size_t c = 0; c < 5; ++c) {
    EXPECT_NEAR(std::exp(a.lse - lse) * a.out[c] + std::exp(b.lse - lse) * b.out[c], whole.out[c], 1e-13);
  }
}

TEST(Reference, OrderOfKeysDoesNotMatter) {
  OwnedArguments own({.seqlen_kv = 17, .head_dim_qk = 2, .head_dim_v = 2}, 3);
  const Row before = reference_row(own.arguments);
  for (auto* values : {&own.k, &own.v}) {
    for (size_t j = 0; j < 8; ++j)
      std::swap_ranges(values->begin() + 2 * j, values->begin() + 2 * j + 2, values->end() - 2 * j - 2);
  }
  const Row after = reference_row(own.arguments);
  EXPECT_NEAR(after.lse, before.lse, 1e-13);
  for (size_t c = 0; c < 2; ++c) EXPECT_NEAR(after.out[c], before.out[c], 1e-13);
}

TEST(Reference, AConstantOnAllScoresMovesOnlyTheLse) {
  OwnedArguments own({.seqlen_kv = 9, .head_dim_qk = 4, .head_dim_v = 4}, 4);
  const Row before = reference_row(own.arguments);
  own.set_bias(std::vector<float>(9, 700.0f), 0);
  const Row after = reference_row(own.arguments);
  EXPECT_NEAR(after.lse, before.lse + 700, 1e-10);
  for (size_t c = 0; c < 4; ++c) EXPECT_NEAR(after.out[c], before.out[c], 1e-11);
}

TEST(Reference, PlainErrsAsMuchAsItsPrecision) {
  OwnedArguments own({.seqlen_kv = 200, .head_dim_qk = 64, .head_dim_v = 64}, 5);
  own.arguments.scale = 0.125f;
  const Row exact = reference_row(own.arguments);
  std::vector<float> scratch(static_cast<size_t>(reference::row_scratch(own.arguments))), plain(64);
  const double lse =
      reference::plain_row(own.arguments, core::sequence(own.arguments, 0), 0, 0, scratch.data(), plain.data());
  double error = 0;
  for (size_t c = 0; c < 64; ++c) error = std::max(error, std::abs(plain[c] - exact.out[c]));
  EXPECT_GT(error, 1e-10);
  EXPECT_LT(error, 1e-6);
  EXPECT_NEAR(lse, exact.lse, 1e-5);
}

}  // namespace
}  // namespace tessella::tests
