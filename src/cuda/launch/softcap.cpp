#include "cuda/launch/softcap.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace tessella::cuda {
namespace {

constexpr int kTerms = 3;

// The odd polynomial of three terms that equals tanh at the Chebyshev nodes of [-last, last]. It is close to the best
// one: no other has a much smaller largest error. Coefficients of y, y^3, y^5.
std::array<double, 3> tanh_series(double last) {
  // Taylor's serve where differences of the nodes would be lost in rounding.
  if (last < 0.02) return {1, -1.0 / 3, 2.0 / 15};
  std::array<double, 3> at{}, of{};  // squares of the nodes; tanh(y) / y there, then its divided differences
  for (int i = 0; i < kTerms; ++i) {
    const double y = last * std::cos((2 * i + 1) * std::numbers::pi / (4 * kTerms + 2));
    at[i] = y * y;
    of[i] = std::tanh(y) / y;
  }
  for (int order = 1; order < kTerms; ++order) {
    for (int i = kTerms - 1; i >= order; --i) of[i] = (of[i] - of[i - 1]) / (at[i] - at[i - order]);
  }
  return {of[0] - at[0] * (of[1] - at[1] * of[2]), of[1] - (at[0] + at[1]) * of[2], of[2]};
}

// The largest argument up to which that polynomial times `softcap` errs by at most `error`. Its error is about the
// first missing term of tanh, -17 y^7 / 315, times 4^-3 for Chebyshev nodes.
double last_of_series(double softcap, double error) {
  constexpr double kLargest = 0.35;  // beyond it later terms count
  constexpr double kFirstLeftOut = 17.0 / 315;
  return std::min(std::pow(error / softcap * 64 / kFirstLeftOut, 1.0 / 7), kLargest);
}

// Whether a float has all its bits: a coefficient that overflows or loses some makes the series useless.
bool is_whole(double x) { return std::isnormal(static_cast<float>(x)); }

}  // namespace

portable::SoftcapParams softcap_params(const core::AttentionArguments& p) {
  portable::SoftcapParams params{};
  params.cap = std::min(p.softcap, 0x1p126f);  // finite as an exponent of 2; no score comes near it
  params.end_of_series = -1;
  const double cap = params.cap;
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double scale = std::min<double>(
      std::max(std::fabs(static_cast<float>(p.scale)), std::numeric_limits<float>::min()) / params.cap, kLargest);
  params.scale = static_cast<float>(scale);

  constexpr double kError = 0x1p-21;  // error of a score: the rounding of fp32 at 8
  const double last = last_of_series(cap, kError);
  const std::array<double, kTerms> series = tanh_series(last);
  double factor = cap * scale;
  for (int i = 0; i < kTerms; ++i, factor *= scale * scale) {
    if (!is_whole(factor * series[i])) return params;
    params.series[i] = static_cast<float>(factor * series[i]);
  }
  params.end_of_series = static_cast<float>(std::min(last / scale, kLargest));
  return params;
}

}  // namespace tessella::cuda
