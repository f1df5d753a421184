// How a softcap is computed on a GPU: its series, and where it serves.
#include "cuda/launch/softcap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cases/arguments.hpp"

namespace tessella::cuda {
namespace {

using portable::SoftcapParams;

struct Series {
  int terms;
  bool scales_q;
};
constexpr Series kLong{3, false}, kShort{2, false}, kSaturated{2, true};
constexpr double kScale = 0.088;

SoftcapParams params(double scale, double softcap, core::DType dtype = core::DType::bf16,
                     const Series& series = kLong) {
  core::AttentionArguments p = tests::gpu_arguments({}, dtype);
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  return softcap_params(p, {.softcap = true, .series_terms = series.terms}, series.scales_q);
}

// As device/score/score.hpp has it: the exponent of 2 of a product.
double by_series(const SoftcapParams& of, const Series& by, double product) {
  const double square = by.scales_q ? std::min(product * product, 1.0) : product * product;
  const double last = by.terms == 2 ? 0 : of.series[2];
  return product * ((last * square + of.series[1]) * square + of.series[0]);
}
double exact(const SoftcapParams& of, double product) {
  return of.cap * std::tanh(product * of.scale) * std::numbers::log2e;
}
// Of a score, in natural units.
double error(const Series& by) { return by.terms == 2 ? 0x1p-13 : 0x1p-21; }

TEST(Softcap, SeriesHoldsWhereItIsUsed) {
  for (const Series& by : {kLong, kShort, kSaturated}) {
    for (const core::DType dtype : {core::DType::bf16, core::DType::f16}) {
      const double largest = dtype == core::DType::f16 ? 14 : 30;  // of its exponents
      for (const double softcap : {0.3, 1.0, 30.0, 50.0, 1e4}) {
        const SoftcapParams of = params(kScale, softcap, dtype, by);
        const double last = std::sqrt(static_cast<double>(of.square));
        EXPECT_GT(last * of.scale * softcap, std::min(0.19 * softcap, 0.99 * largest / std::numbers::log2e)) << softcap;
        for (double product = last / 100; product <= last; product *= 1.01) {
          const double series = by_series(of, by, product);
          EXPECT_NEAR(series / std::numbers::log2e, exact(of, product) / std::numbers::log2e,
                      1.1 * error(by) + 1e-7 * series)  // rounded coefficients
              << softcap << " " << product;
          EXPECT_LE(series, largest * 1.001) << softcap << " " << product;
        }
      }
    }
  }
  // Standard normal scores do not leave it with a softcap of 30.
  for (const Series& by : {kLong, kSaturated}) {
    const SoftcapParams of = params(kScale, 30, core::DType::bf16, by);
    EXPECT_GT(std::sqrt(of.square) * of.scale * 30, 6.3);
  }
}

TEST(Softcap, SquaresSaturateBehindTheSeries) {
  for (const double scale : {0.088, 1.0, 0.01}) {
    const SoftcapParams of = params(scale, 30, core::DType::bf16, kSaturated);
    EXPECT_LT(of.square, 0.99) << scale << ", or squares of larger products would pass";
    EXPECT_GT(of.square, 0.24) << scale;
    EXPECT_FLOAT_EQ(of.scale * of.q_factor * 30, static_cast<float>(scale));
  }
  EXPECT_EQ(params(kScale, 30).q_factor, 1);
}

TEST(Softcap, WithoutASeriesThereIsNone) { EXPECT_EQ(params(kScale, 30, core::DType::bf16, {0, false}).square, -1); }

TEST(Softcap, SeriesIsNotUsedWhereItFails) {
  EXPECT_EQ(params(0.088, 1e9).square, -1) << "its last coefficient has no bits";
  EXPECT_EQ(params(1e-7, 30).square, -1);
  EXPECT_EQ(params(1e9, 20).square, -1) << "or is infinite";
  EXPECT_EQ(params(0, 30).square, -1);
  for (const double scale : {1e-5, 100.0}) {
    EXPECT_EQ(params(scale, 30, core::DType::bf16, kSaturated).square, -1) << "q would lose bits";
    EXPECT_EQ(params(scale, 30, core::DType::bf16, kSaturated).q_factor, 1);
  }
}

}  // namespace
}  // namespace tessella::cuda
