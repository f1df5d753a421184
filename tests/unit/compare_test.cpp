// The comparator fails when it must: a comparator that lets NaN through passes everything.
#include "reference/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cases/arguments.hpp"
#include "operations/attention/arguments.hpp"
#include "reference/check.hpp"

namespace tessella::tests {
namespace {

using reference::Comparison;
using reference::Index;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Comparison one(double got, double expected, double plain, double noise = 0, double factor = 2) {
  Comparison comparison(factor);
  comparison.add({0, 0, 0, 0}, got, expected, plain, noise);
  return comparison;
}

// A number beyond f16's: an infinity in the plain computation too, of the same sign, and nowhere else.
TEST(Compare, AnOverflowIsThePlainComputationsToo) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(one(-kInfinity, -116544, -kInfinity).passed());
  EXPECT_FALSE(one(kInfinity, -116544, -kInfinity).passed());
  EXPECT_FALSE(one(-kInfinity, -116544, -116544).passed());
  EXPECT_FALSE(one(-kInfinity, 3, 3).passed());
  EXPECT_TRUE(one(-kInfinity, -65520, -65504).passed());  // the end of f16's range: both sides are right
  EXPECT_FALSE(one(kInfinity, -65520, -65504).passed());
}

TEST(Compare, NothingPasses) { EXPECT_TRUE(Comparison(2).passed()); }

TEST(Compare, MisplacedNaNFails) {
  EXPECT_FALSE(one(kNaN, 1, 1, 1e9).passed());
  EXPECT_FALSE(one(1, kNaN, 1, 1e9).passed());
  EXPECT_FALSE(one(kNaN, 0, kNaN, kNaN).passed());
  EXPECT_TRUE(one(kNaN, kNaN, kNaN).passed());
}

TEST(Compare, MisplacedInfinityFails) {
  EXPECT_FALSE(one(kInf, 1, 1, 1e9).passed());
  EXPECT_FALSE(one(-kInf, kInf, kInf).passed());
  EXPECT_FALSE(one(1e30, kInf, kInf).passed());
  EXPECT_FALSE(one(kNaN, -kInf, -kInf).passed());
  EXPECT_TRUE(one(-kInf, -kInf, -kInf).passed());
}

TEST(Compare, NaNIsTheWorstWhateverComesAfter) {
  Comparison comparison(2);
  comparison.add({0, 0, 0, 0}, 5, 1, 1, 0);
  comparison.add({0, 1, 2, 3}, kNaN, 1, 1, 0);
  comparison.add({0, 2, 0, 0}, 1e30, 1, 1, 0);
  EXPECT_FALSE(comparison.passed());
  EXPECT_EQ(comparison.worst_index(), (Index{0, 1, 2, 3}));
  EXPECT_TRUE(std::isnan(comparison.worst_got()));
  EXPECT_TRUE(std::isnan(comparison.max_error()));
}

TEST(Compare, ToleranceIsFactorTimesPlainPlusNoise) {
  EXPECT_TRUE(one(1.2, 1, 1.1001).passed());
  EXPECT_FALSE(one(1.2, 1, 1.0999).passed());
  EXPECT_TRUE(one(1.2, 1, 1.0999, 0.001).passed());
  EXPECT_TRUE(one(1.3, 1, 1.1001, 0, 3).passed());
  EXPECT_DOUBLE_EQ(one(1, 1, 1.5, 0.25).tolerance(), 1.25);
}

TEST(Compare, BrokenPlainOrNoiseWidensNothing) {
  EXPECT_FALSE(one(1.2, 1, kNaN, 0.1).passed());
  EXPECT_FALSE(one(1.2, 1, kInf, 0.1).passed());
  EXPECT_FALSE(one(1.2, 1, 1, kNaN).passed());
  EXPECT_FALSE(one(1.2, 1, 1, kInf).passed());
}

// One element's floor is no licence for another.
TEST(Compare, NoiseIsTheElementsOwn) {
  Comparison comparison(2);
  comparison.add({0, 0, 0, 0}, 7, 1, 1, 1e30);
  EXPECT_TRUE(comparison.passed());
  EXPECT_EQ(comparison.max_error(), 6);
  EXPECT_EQ(comparison.tolerance(), 1e30);
  comparison.add({0, 1, 0, 0}, 1.5, 1, 1, 0.25);
  EXPECT_FALSE(comparison.passed());
  EXPECT_EQ(comparison.worst_index(), (Index{0, 1, 0, 0}));
  EXPECT_EQ(comparison.max_error(), 0.5);
  EXPECT_EQ(comparison.tolerance(), 0.25);
  comparison.add({0, 2, 0, 0}, 1, 1, 1.25, 0);  // the plain error counts for all, whenever it is seen
  EXPECT_TRUE(comparison.passed());
}

TEST(Compare, NamesTheWorstElement) {
  Comparison comparison(2);
  comparison.add({0, 0, 0, 0}, 1.5, 1, 1, 0);
  comparison.add({1, 2, 3, 4}, 3, 1, 1, 0);
  comparison.add({1, 2, 3, 5}, 2, 1, 1, 0);
  EXPECT_EQ(comparison.worst_index(), (Index{1, 2, 3, 4}));
  EXPECT_EQ(comparison.worst_got(), 3);
  EXPECT_EQ(comparison.worst_expected(), 1);
  EXPECT_NE(comparison.message().find("batch 1, row 2, head 3, dim 4"), std::string::npos);
}

// The check as a whole: right output passes, one wrong element does not.
class CheckForward : public testing::Test {
 protected:
  OwnedArguments own_{
      {.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 5, .seqlen_kv = 9, .head_dim_qk = 8, .head_dim_v = 6}};
  void SetUp() override { put_right_output(); }
  void put_right_output() {
    const core::AttentionArguments& p = own_.arguments;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t head = 0; head < p.heads_q; ++head) {
        for (int64_t i = 0; i < p.seqlen_q; ++i) {
          const Row row = reference_row(p, i, head, b);
          auto* out = reinterpret_cast<float*>(p.out().row(b, i, head));
          for (size_t c = 0; c < row.out.size(); ++c) out[c] = static_cast<float>(row.out[c]);
          *reinterpret_cast<float*>(p.lse().row(b, i, head)) = static_cast<float>(row.lse);
        }
      }
    }
  }
  float& out(int64_t b, int64_t i, int64_t head, int64_t c) {
    return reinterpret_cast<float*>(own_.arguments.out().row(b, i, head))[c];
  }
  float& lse(int64_t b, int64_t i, int64_t head) {
    return *reinterpret_cast<float*>(own_.arguments.lse().row(b, i, head));
  }
  reference::CheckReport check(int64_t rows = 0) { return reference::check_forward(own_.arguments, rows, 1); }
};

TEST_F(CheckForward, RightOutputPasses) {
  const auto report = check();
  EXPECT_TRUE(report.passed);
  EXPECT_EQ(report.rows, 2 * 4 * 5);
  EXPECT_GT(report.plain_error, 0);
  EXPECT_LT(report.tolerance, 1e-5);
  EXPECT_EQ(check(7).rows, 7);
}

TEST_F(CheckForward, OneWrongElementFails) {
  out(1, 3, 2, 5) += 1e-4f;
  const auto report = check();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.worst_index, (Index{1, 3, 2, 5}));
  EXPECT_NEAR(report.max_error, 1e-4, 1e-6);
}

TEST_F(CheckForward, OneNaNFails) {
  out(0, 4, 0, 0) = NAN;
  EXPECT_FALSE(check().passed);
  EXPECT_EQ(check().worst_index, (Index{0, 4, 0, 0}));
}

// Kernels multiply a tile's P by all of v: what is not finite there reaches every row, in its own column.
TEST_F(CheckForward, NaNOfAValueThatSomeQuerySeesMayReachItsColumn) {
  own_.set_causal();
  for (const double value : {kNaN, kInf, -kInf}) {
    float& spoiled = own_.v[static_cast<size_t>(((1 * 9 + 8) * 2 + 1) * 6 + 4)];  // batch 1, key 8, KV head 1, column 4
    const float before = spoiled;
    spoiled = static_cast<float>(value);  // query 4 alone sees it, by heads 2 and 3
    put_right_output();
    EXPECT_TRUE(check().passed) << value;
    const auto passes_with = [&](double got, int64_t b, int64_t i, int64_t head, int64_t c) {
      float& at = out(b, i, head, c);
      const float right = at;
      at = static_cast<float>(got);
      const bool passed = check().passed;
      at = right;
      return passed;
    };
    EXPECT_TRUE(passes_with(kNaN, 1, 0, 2, 4)) << value;
    EXPECT_TRUE(passes_with(kNaN, 1, 3, 3, 4)) << value;
    EXPECT_FALSE(passes_with(kNaN, 1, 0, 2, 5)) << value;  // another column
    EXPECT_FALSE(passes_with(kNaN, 1, 0, 1, 4)) << value;  // another KV head
    EXPECT_FALSE(passes_with(kNaN, 0, 0, 2, 4)) << value;  // another sequence
    EXPECT_FALSE(passes_with(kInf, 1, 0, 2, 4)) << value;
    EXPECT_FALSE(passes_with(out(1, 0, 2, 4) + 1e-4, 1, 0, 2, 4)) << value;
    EXPECT_FALSE(passes_with(0, 1, 4, 2, 4)) << value;  // the reference has it there
    lse(1, 0, 2) = NAN;
    EXPECT_FALSE(check().passed) << value;
    spoiled = before;
  }
}

TEST_F(CheckForward, NaNOfAValueThatNoQuerySeesReachesNothing) {
  const int32_t used[] = {8, 8};
  own_.arguments.features |= core::Feature::seqlens_kv;
  own_.arguments.seqlens_kv = {used, 1};
  own_.v[static_cast<size_t>((8 * 2) * 6 + 4)] = NAN;  // key 8
  put_right_output();
  EXPECT_TRUE(check().passed);
  out(0, 2, 1, 4) = NAN;
  EXPECT_FALSE(check().passed);
  own_.arguments.seqlens_kv = {};
  own_.arguments.features |= core::Feature::window;
  own_.arguments.window_left = 3;  // query 0 stands at key 4: none sees key 0
  own_.v[static_cast<size_t>((8 * 2) * 6 + 4)] = 0.5f;
  own_.v[4] = NAN;  // key 0
  put_right_output();
  out(0, 2, 1, 4) = NAN;
  EXPECT_FALSE(check().passed);
}

TEST_F(CheckForward, NaNInRowsPastTheLengthFails) {
  const int32_t used[] = {4, 4};
  own_.arguments.features |= core::Feature::seqlens_q;
  own_.arguments.seqlens_q = {used, 1};
  own_.v[4] = NAN;
  put_right_output();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t head = 0; head < 4; ++head) {
      for (int64_t c = 0; c < 6; ++c) out(b, 4, head, c) = 0;
      lse(b, 4, head) = -std::numeric_limits<float>::infinity();
    }
  }
  EXPECT_TRUE(check().passed);
  out(0, 4, 0, 4) = NAN;
  EXPECT_FALSE(check().passed);
}

// An infinity of q or k that a row multiplies makes it NaN on a GPU in fp32, and there alone.
TEST_F(CheckForward, InfinityInAnOperandThatIsSplitMayBeNaN) {
  own_.set_causal();
  own_.q[0] = 1;
  for (int64_t i = 0; i < 5; ++i) own_.q[static_cast<size_t>(i * 4 * 8)] = 1;          // column 0 of head 0
  own_.k[static_cast<size_t>((8 * 2) * 8)] = -std::numeric_limits<float>::infinity();  // key 8, which query 4 sees
  put_right_output();
  const auto passes = [&](core::DeviceType device) {
    return reference::check_forward(own_.arguments, 0, 1, device).passed;
  };
  EXPECT_TRUE(passes(core::DeviceType::cpu));
  for (int64_t c = 0; c < 6; ++c) out(0, 4, 0, c) = NAN;
  lse(0, 4, 0) = NAN;
  EXPECT_TRUE(passes(core::DeviceType::cuda));
  EXPECT_FALSE(passes(core::DeviceType::cpu));
  out(0, 3, 0, 0) = NAN;  // does not see it
  EXPECT_FALSE(passes(core::DeviceType::cuda));
}

TEST_F(CheckForward, WrongLseFails) {
  lse(1, 0, 3) += 1e-4f;
  EXPECT_FALSE(check().passed);
  EXPECT_EQ(check().worst_index, (Index{1, 0, 3, -1}));
  lse(1, 0, 3) = NAN;
  EXPECT_FALSE(check().passed);
}

// Padding as frameworks write it, a huge negative bias: the key has a huge score and no probability.
TEST_F(CheckForward, PaddingByBiasWidensNothing) {
  for (const float padding : {-std::numeric_limits<float>::max(), -1e9f, -1e4f}) {
    std::vector<float> bias(9, 0.0f);
    bias[8] = padding;
    own_.set_bias(bias, 0);
    put_right_output();
    EXPECT_TRUE(check().passed) << padding;
    EXPECT_LT(check().tolerance, 1e-5) << padding;
    const float right = out(1, 2, 1, 3);
    for (const float wrong : {100.0f, right + 1e-4f}) {
      out(1, 2, 1, 3) = wrong;
      EXPECT_FALSE(check().passed) << padding;
      EXPECT_EQ(check().worst_index, (Index{1, 2, 1, 3}));
    }
    out(1, 2, 1, 3) = right;
    lse(0, 1, 2) += 1e-4f;
    EXPECT_FALSE(check().passed) << padding;
  }
}

TEST_F(CheckForward, RowsPastTheLengthMustBeZero) {
  const int32_t used[] = {5, 4};
  own_.arguments.features |= core::Feature::seqlens_q;
  own_.arguments.seqlens_q = {used, 1};
  EXPECT_FALSE(check().passed);  // row 4 of the second sequence still holds an output
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t c = 0; c < 6; ++c) out(1, 4, head, c) = 0;
    lse(1, 4, head) = -std::numeric_limits<float>::infinity();
  }
  EXPECT_TRUE(check().passed);
}

}  // namespace
}  // namespace tessella::tests
