// What a check must refuse, in cases whose results are known by hand: a few numbers, one head, one query.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tessella/backward.hpp>
#include <vector>

#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

// (1, rows, 1, 1) of a dtype, or (1, 1, rows) for the LSE.
class Numbers {
 public:
  Numbers(DType dtype, const std::vector<double>& values) : dtype_(dtype), memory_(values.size() * 8) {
    for (size_t n = 0; n < values.size(); ++n) set(n, values[n]);
    rows_ = static_cast<int64_t>(values.size());
  }
  void set(size_t n, double value) {
    if (dtype_ == f64) return put(n, value);
    if (dtype_ == f32) return put(n, static_cast<float>(value));
    if (dtype_ == bf16) return put(n, portable::to_bfloat16(static_cast<float>(value)));
    put(n, portable::to_float16(static_cast<float>(value)));
  }
  TensorView view() { return tessella::view(memory_.data(), dtype_, {1, rows_, 1, 1}); }
  TensorView lse() { return tessella::view(memory_.data(), dtype_, {1, 1, rows_}); }

 private:
  template <typename T>
  void put(size_t n, T value) {
    std::memcpy(memory_.data() + n * sizeof(T), &value, sizeof(T));
  }
  DType dtype_;
  std::vector<std::byte> memory_;
  int64_t rows_ = 0;
};

// One query over some keys, head dim 1, scale 1, and its gradients.
class OneRow {
 public:
  OneRow(DType dtype, double q, const std::vector<double>& k, const std::vector<double>& v, double softcap = 0)
      : q_(dtype, {q}),
        k_(dtype, k),
        v_(dtype, v),
        out_(dtype, {0}),
        d_out_(dtype, {1}),
        lse_(dtype == f64 ? f64 : f32, {0}),
        dq_(dtype, {0}),
        dk_(dtype, k),
        dv_(dtype, v) {
    args_ = {.q = q_.view(), .k = k_.view(), .v = v_.view(), .out = out_.view(), .lse = lse_.lse()};
    gradients_ = {.d_out = d_out_.view(), .dq = dq_.view(), .dk = dk_.view(), .dv = dv_.view()};
    options_ = {.scale = 1, .softcap = static_cast<float>(softcap), .kernel = "reference.attention"};
    forward(args_, options_);
    options_.kernel = "reference.backward";
    backward(args_, gradients_, options_);
    options_.kernel.clear();
  }

  bool passes() { return check_forward(args_, options_, 0).passed; }
  bool passes_with_out(double out) {
    out_.set(0, out);
    return passes();
  }
  bool gradients_pass() { return check_backward(args_, gradients_, options_, 0).passed; }
  void set_lse(double lse) { lse_.set(0, lse); }
  void set_out(double out) { out_.set(0, out); }
  bool pass_with_dv(double dv) {
    dv_.set(0, dv);
    return gradients_pass();
  }
  bool pass_with_dq(double dq) {
    dq_.set(0, dq);
    return gradients_pass();
  }

 private:
  Numbers q_, k_, v_, out_, d_out_, lse_, dq_, dk_, dv_;
  ForwardArgs args_;
  Gradients gradients_;
  AttentionOptions options_;
};

class Check : public testing::TestWithParam<DType> {};

// The first key has the row to itself, and no rounding of its score, a hundred million, changes that.
TEST_P(Check, ASaturatedRowMovesWithNoScore) {
  for (const double softcap : {0.0, 30.0}) {
    OneRow row(GetParam(), 1e4, {1e4, 0}, {1, 0}, softcap);
    EXPECT_TRUE(row.passes());
    for (const double wrong : {0.0, -5.0, 0.98, 1.02}) EXPECT_FALSE(row.passes_with_out(wrong)) << wrong;
  }
}

TEST_P(Check, NorDoItsGradients) {
  for (const double softcap : {0.0, 30.0}) {
    OneRow row(GetParam(), 1e4, {1e4, 0}, {1, 0}, softcap);
    EXPECT_TRUE(row.gradients_pass());
    EXPECT_FALSE(row.pass_with_dq(1000));  // of k = 10,000 times a dS that is 0
    row.pass_with_dq(0);
    for (const double wrong : {0.0, -5.0, 0.95, 1.05}) EXPECT_FALSE(row.pass_with_dv(wrong)) << wrong;
  }
}

// A score between those that fp32 has: whatever is near is right, as in standard attention.
TEST_P(Check, ScoresThatFp32CannotTellApartMayTrade) {
  if (GetParam() != f32) GTEST_SKIP() << "products of 16 bits are exact in fp32, and doubles tell them apart";
  OneRow row(GetParam(), 10001, {10001, 10000}, {1, 0});
  EXPECT_TRUE(row.passes());
  OneRow close(GetParam(), 1e4f, {1e4f, std::nextafter(1e4f, 0.0f)}, {1, 0});  // 10 apart, of 100,000,000
  EXPECT_TRUE(close.passes_with_out(0.5));
  EXPECT_FALSE(close.passes_with_out(-1.1));  // but a mean stays between its values
}

// Twenty apart, of a million: the second key has 2e-9 and may have little more.
TEST_P(Check, AlmostSaturatedRowsHardlyMove) {
  if (GetParam() != f32) GTEST_SKIP() << "needs 20 bits of k";
  OneRow row(GetParam(), 1000, {1000, 999.98}, {1, 0});
  EXPECT_TRUE(row.passes());
  EXPECT_FALSE(row.passes_with_out(1 - 1e-6));
}

// lse = 1 - 3 makes P e^3 = 20.09, where it is 1: the bound must not grow with what is wrong.
TEST_P(Check, AWrongLseWidensNoGradientsBound) {
  for (const double lse : {1.0, -2.0, 30.0}) {
    OneRow row(GetParam(), 1, {1}, {1});
    row.set_lse(lse);
    EXPECT_TRUE(row.gradients_pass()) << lse;
    for (const double wrong : {std::exp(3.0), 0.0, 0.98}) EXPECT_FALSE(row.pass_with_dv(wrong)) << lse;
  }
}

TEST_P(Check, NorDoesAWrongOut) {
  OneRow row(GetParam(), 1, {1, 0}, {1, 0});
  row.set_out(-7);
  EXPECT_TRUE(row.gradients_pass());
  const double prob = 1 / (1 + std::exp(-1.0));
  EXPECT_FALSE(row.pass_with_dq(prob * (1 + 7)));  // P (dP - delta) k, with delta = -7
  EXPECT_FALSE(row.pass_with_dq(prob * (1 - prob) * 1.05));
}

std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  return info.param == f64 ? "f64" : info.param == f32 ? "f32" : info.param == bf16 ? "bf16" : "f16";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Check, testing::Values(f64, f32, bf16, f16), dtype_name);

}  // namespace
}  // namespace tessella::tests
