// How a softcap is computed on a GPU: its series, and where it serves.
#include "cuda/launch/softcap.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cases/arguments.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cuda {
namespace {

using portable::SoftcapParams;

constexpr double kScale = 0.088;

SoftcapParams params(double scale, double softcap) {
  core::AttentionArguments p = tests::gpu_arguments({});
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  return softcap_params(p);
}

// As device/score/score.cuh has it.
double by_series(const SoftcapParams& of, double product) {
  const double square = product * product;
  return product * ((of.series[2] * square + of.series[1]) * square + of.series[0]);
}

TEST(Softcap, SeriesHoldsWhereItIsUsed) {
  for (const double softcap : {0.3, 1.0, 30.0, 50.0, 1e4}) {
    const SoftcapParams of = params(kScale, softcap);
    const double last = of.end_of_series;
    EXPECT_GT(last * of.scale, std::min(0.17, 30 / softcap)) << softcap;
    for (double product = last / 100; product <= last; product *= 1.01) {
      const double series = by_series(of, product);
      EXPECT_NEAR(series, of.cap * std::tanh(product * of.scale),
                  1.1 * 0x1p-21 + 1e-7 * series)  // rounded coefficients
          << softcap << " " << product;
    }
  }
  // Standard normal scores do not leave it with a softcap of 30.
  const SoftcapParams of = params(kScale, 30);
  EXPECT_GT(of.end_of_series * of.scale * 30, 6.3);
}

TEST(Softcap, SeriesIsNotUsedWhereItFails) {
  EXPECT_EQ(params(0.088, 1e9).end_of_series, -1) << "its last coefficient has no bits";
  EXPECT_EQ(params(1e-7, 30).end_of_series, -1);
  EXPECT_EQ(params(1e9, 20).end_of_series, -1) << "or is infinite";
  EXPECT_EQ(params(0, 30).end_of_series, -1);
}

}  // namespace
}  // namespace tessella::cuda
