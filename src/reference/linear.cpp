#include "reference/linear.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "reference/element.hpp"
#include "reference/sampled_row.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {
namespace {

using core::DType;
using core::LinearArguments;

// A product of a row of x and a row of w, with the bias.
template <typename Real>
struct Sum {
  Real value = 0;
  double size = 0;  // sum of the magnitudes of what was added
};

template <typename Real>
Sum<Real> sum(const LinearArguments& a, int64_t row, int64_t w_row) {
  const auto length = static_cast<size_t>(a.in_features);
  thread_local std::vector<Real> x, w;
  x.resize(length);
  w.resize(length);
  load_row(a.x.row(0, row, 0), a.x.dtype, a.in_features, x.data());
  load_row(a.w.row(0, w_row, 0), a.w.dtype, a.in_features, w.data());
  Sum<Real> sum;
  for (size_t i = 0; i < length; ++i) {
    sum.value += x[i] * w[i];
    sum.size += std::abs(static_cast<double>(x[i]) * static_cast<double>(w[i]));
  }
  if (a.w_scale) {
    sum.value *= a.w_scale.at(0, w_row);
    sum.size *= std::abs(static_cast<double>(a.w_scale.at(0, w_row)));
  }
  if (a.bias.dtype != DType::none) {
    const Real bias = load<Real>(a.bias.data, a.bias.dtype, w_row);
    sum.value += bias;
    sum.size += std::abs(static_cast<double>(bias));
  }
  return sum;
}

template <typename Real>
Real silu(Real x) {
  return x / (1 + std::exp(-x));
}

template <typename Real>
Real residual(const LinearArguments& a, int64_t row, int64_t column) {
  if (a.residual.dtype == DType::none) return 0;
  return load<Real>(a.residual.row(0, row, 0), a.residual.dtype, column);
}

double finite(double x) { return std::isfinite(x) ? x : 0; }

constexpr int64_t kColumnsPerTask = 64;
constexpr int64_t kMostColumns = 1024;  // that a check of some rows compares of each

}  // namespace

LinearElement linear_element(const LinearArguments& a, int64_t row, int64_t column) {
  const double unit = unit_roundoff(a.dtype() == DType::f64 ? DType::f64 : DType::f32);
  // Matrix units of GPUs add 8 products at once and cut what a sum of fp32 has no room for: half a unit in the last
  // place of the sum so far, on average half of the whole (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of
  // NVIDIA tensor cores, doi.org/10.7717/peerj-cs.330). With products of one sign all cuts add up.
  const bool has_cuts = a.device.type != core::DeviceType::cpu && core::size_bytes(a.dtype()) == 2;
  const double cuts = has_cuts ? static_cast<double>(a.in_features) / 16 : 0;
  const double roundings = std::log2(static_cast<double>(a.in_features)) + 4 + cuts;
  const Sum<double> first = sum<double>(a, row, column);
  LinearElement element{first.value, roundings * unit * first.size};
  double size = first.size;
  if (a.activation == core::Activation::swiglu) {
    const Sum<double> second = sum<double>(a, row, a.out_features + column);
    const double gate = silu(first.value);
    element.value = gate * second.value;
    // silu's slope is at most 1.1. The argument of exp is rounded, and exp errs by a few units.
    element.noise = 1.1 * element.noise * std::abs(second.value) + std::abs(gate) * roundings * unit * second.size +
                    (8 + 2 * std::abs(first.value)) * unit * std::abs(element.value);
    size = std::max({size, second.size, std::abs(element.value)});
  }
  const double added = residual<double>(a, row, column);
  element.value += added;
  // Where a sum in fp32 may overflow on its way, the result may be anything.
  const bool overflows = a.dtype() != DType::f64 && finite(size) > std::numeric_limits<float>::max();
  element.noise = overflows
                      ? std::numeric_limits<double>::infinity()
                      : finite(element.noise) + 2 * unit * (finite(std::abs(element.value)) + finite(std::abs(added))) +
                            unit_roundoff(a.out.dtype) * finite(std::abs(element.value)) + underflow_unit(a.out.dtype);
  return element;
}

float plain_linear_element(const LinearArguments& a, int64_t row, int64_t column) {
  float value = sum<float>(a, row, column).value;
  if (a.activation == core::Activation::swiglu) value = silu(value) * sum<float>(a, row, a.out_features + column).value;
  return value + residual<float>(a, row, column);
}

void linear_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace, void*) {
  const LinearArguments& a = core::linear(arguments);
  const int64_t blocks = (a.out_features + kColumnsPerTask - 1) / kColumnsPerTask;
  for_each(a.rows * blocks, plan.num_threads, a.cancel, [&](int64_t task, int) {
    const int64_t row = task / blocks, begin = task % blocks * kColumnsPerTask;
    for (int64_t column = begin; column < std::min(a.out_features, begin + kColumnsPerTask); ++column) {
      const double value = linear_element(a, row, column).value;
      std::byte* out = a.out.row(0, row, 0) + core::bytes_of(a.out.dtype, column);
      store_row(out, a.out.dtype, 1, &value);
    }
  });
}

CheckReport check_linear(const LinearArguments& a, int64_t num_rows, uint64_t seed) {
  Comparison comparison(2);
  const int64_t samples = num_rows <= 0 || num_rows > a.rows ? a.rows : num_rows;
  const int64_t columns = num_rows <= 0 ? a.out_features : std::min(a.out_features, kMostColumns);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t row = sampled_row(sample, samples, a.rows, seed);
    for (int64_t i = 0; i < columns; ++i) {
      core::end_if_cancelled(a.cancel);
      const int64_t column = sampled_row(i, columns, a.out_features, seed + static_cast<uint64_t>(sample));
      const LinearElement element = linear_element(a, row, column);
      if (std::isinf(element.noise)) continue;
      const double got = load<double>(a.out.row(0, row, 0), a.out.dtype, column);
      const double plain = a.dtype() == DType::f64
                               ? element.value
                               : round_to(a.out.dtype, static_cast<double>(plain_linear_element(a, row, column)));
      comparison.add({0, row, 0, column}, got, element.value, plain, element.noise);
    }
  }
  return {.rows = samples,
          .max_error = comparison.max_error(),
          .plain_error = comparison.plain_error(),
          .tolerance = comparison.tolerance(),
          .passed = comparison.passed(),
          .worst_index = comparison.worst_index(),
          .worst_got = comparison.worst_got(),
          .worst_expected = comparison.worst_expected()};
}

}  // namespace tessella::reference
