#include "cuda/launch/softcap.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace tessella::cuda {
namespace {

using core::DType;

// Of scores by the series, which are taken against zero: f16 holds no smaller ones with all bits, and bf16 leaves sums
// and outputs in fp32 room for large elements of v.
double largest_exponent(DType dtype) { return dtype == DType::f16 ? 14 : 30; }

// The odd polynomial of `terms` terms, 2 or 3, that meets tanh at Chebyshev's nodes of [-last, last]: no other has a
// largest error smaller by more than 4 %. Coefficients of y, y^3, y^5.
std::array<double, 3> tanh_series(int terms, double last) {
  // Taylor's serve where differences of the nodes would be lost in rounding.
  if (last < 0.02) return {1, -1.0 / 3, terms == 2 ? 0 : 2.0 / 15};
  std::array<double, 3> at{}, of{};  // squares of the nodes; tanh(y) / y there, then its divided differences
  for (int i = 0; i < terms; ++i) {
    const double y = last * std::cos((2 * i + 1) * std::numbers::pi / (4 * terms + 2));
    at[i] = y * y;
    of[i] = std::tanh(y) / y;
  }
  for (int order = 1; order < terms; ++order) {
    for (int i = terms - 1; i >= order; --i) of[i] = (of[i] - of[i - 1]) / (at[i] - at[i - order]);
  }
  return {of[0] - at[0] * (of[1] - at[1] * of[2]), of[1] - (at[0] + at[1]) * of[2], of[2]};
}

// Up to which argument that polynomial times `softcap` errs by no more than `error`. The first term of tanh that it
// lacks, 2 y^5 / 15 or -17 y^7 / 315, is what it errs by, but for a factor of 4^-terms at Chebyshev's nodes.
double last_of_series(int terms, double softcap, double error) {
  constexpr double kLargest = 0.35;  // where the terms behind it count
  const double first_left_out = terms == 2 ? 2.0 / 15 : 17.0 / 315;
  return std::min(std::pow(error / softcap * std::pow(4, terms) / first_left_out, 1.0 / (2 * terms + 1)), kLargest);
}

// Powers of two that queries are divided by at most, as those below 2^-126 lose bits.
constexpr int kLargestShift = 16;

// Whether a float has all its bits: a coefficient that overflows or loses some makes the series useless.
bool is_whole(double x) { return std::isnormal(static_cast<float>(x)); }

}  // namespace

portable::SoftcapParams softcap_params(const core::AttentionArguments& p, const portable::ScoreConfig& config,
                                       bool scales_q) {
  portable::SoftcapParams params{};
  params.cap = std::min(p.softcap, 0x1p126f);  // finite as an exponent of 2; no score comes near it
  params.q_factor = 1;
  params.square = -1;
  const double cap_log2 = params.cap * std::numbers::log2e;
  constexpr double kLargest = std::numeric_limits<float>::max();
  double scale =
      std::min<double>(std::max(std::fabs(p.scale), std::numeric_limits<float>::min()) / params.cap, kLargest);
  params.scale = static_cast<float>(scale);

  const int terms = config.series_terms;
  if (terms == 0) return params;
  // Of a score: as fp32 rounds one of 8. Of two terms, a sixteenth of what P loses when it is rounded to bf16.
  const double error = terms == 2 ? 0x1p-13 : 0x1p-21;
  const double last = std::min(last_of_series(terms, params.cap, error), largest_exponent(p.dtype()) / cap_log2);
  if (scales_q) {
    // The power of two that makes products at the end of the series a little less than 1, or down to half.
    int exponent = 0;
    std::frexp(1.01 * last / scale, &exponent);
    if (exponent < 0 || exponent > kLargestShift) return params;
    params.q_factor = std::ldexp(1.0f, -exponent);
    scale = std::ldexp(scale, exponent);
    params.scale = static_cast<float>(scale);
  }
  const std::array<double, 3> series = tanh_series(terms, last);
  double factor = cap_log2 * scale;
  for (int i = 0; i < terms; ++i, factor *= scale * scale) {
    if (!is_whole(factor * series[i])) return params;
    params.series[i] = static_cast<float>(factor * series[i]);
  }
  const double small = last / scale;
  params.square = static_cast<float>(std::min(small * small, kLargest));
  return params;
}

}  // namespace tessella::cuda
