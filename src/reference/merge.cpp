// States of disjoint sets of keys, merged by the formula (FlashInfer, arXiv 2501.01005, section 2.2):
//   LSE = log sum_i exp(lse_i),  out = sum_i exp(lse_i - LSE) out_i.
// A state whose lse is -inf has no key and is not read: it may hold anything.

#include "reference/merge.hpp"

#include <algorithm>
#include <cmath>

#include "core/plan.hpp"
#include "reference/element.hpp"
#include "reference/score.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {
namespace {

using core::DType;
using core::MergeArguments;

template <typename Real>
Real row(const MergeArguments& a, int64_t b, int64_t s, int64_t h, Real* weights, Real* out) {
  const auto lse = [&](size_t i) { return load<Real>(a.given[i].lse.row(b, s, h), a.given[i].lse.dtype, 0); };
  Real max = kHidden<Real>;
  for (size_t i = 0; i < a.given.size(); ++i) max = std::max(max, lse(i));
  if (max == kHidden<Real>) max = 0;  // -inf - -inf would be NaN

  Real sum = 0;
  for (size_t i = 0; i < a.given.size(); ++i) sum += weights[i] = std::exp(lse(i) - max);

  std::fill(out, out + a.head_dim, Real{0});
  bool is_first = true;  // 0 + -0 is 0, and a state alone is copied as it is
  for (size_t i = 0; i < a.given.size(); ++i) {
    weights[i] = sum == 0 ? 0 : weights[i] / sum;
    if (lse(i) == kHidden<Real>) continue;
    const std::byte* state = a.given[i].out.row(b, s, h);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const Real term = weights[i] * load<Real>(state, a.dtype(), c);
      out[c] = is_first ? term : out[c] + term;
    }
    is_first = false;
  }
  return sum == 0 ? kHidden<Real> : max + std::log(sum);
}

constexpr int64_t kRowsPerTask = 64;

int64_t row_bytes(const core::MergeShape& shape) {
  return (shape.num_states + shape.head_dim) * static_cast<int64_t>(sizeof(double));
}

}  // namespace

double merge_row(const MergeArguments& a, int64_t b, int64_t s, int64_t h, double* weights, double* out) {
  return row<double>(a, b, s, h, weights, out);
}
float plain_merge_row(const MergeArguments& a, int64_t b, int64_t s, int64_t h, float* weights, float* out) {
  return row<float>(a, b, s, h, weights, out);
}

// exp's argument lse_i - max is rounded, and once more by a kernel whose exp has another base; exp errs by up to four
// units; the sums over states, and a kernel's partial merges, round once a state.
MergeNoise merge_noise(const MergeArguments& a, int64_t b, int64_t s, int64_t h, const double* weights,
                       const double* out, double lse) {
  const auto states = static_cast<double>(a.given.size());
  const double unit = unit_roundoff(a.dtype() == DType::f64 ? DType::f64 : DType::f32);
  MergeNoise noise{std::vector<double>(static_cast<size_t>(a.head_dim)), 0};
  double sum_unit = 0;  // relative error of the sum of weights
  const auto weight_unit = [&](size_t i) { return unit * (6 + (weights[i] > 0 ? -2 * std::log(weights[i]) : 0)); };
  for (size_t i = 0; i < a.given.size(); ++i) {
    if (weights[i] > 0) sum_unit += weights[i] * weight_unit(i);
  }
  const double common = sum_unit + unit * (states + 2);
  for (size_t i = 0; i < a.given.size(); ++i) {
    if (!(weights[i] > 0)) continue;
    const std::byte* state = a.given[i].out.row(b, s, h);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const double size = std::abs(load<double>(state, a.dtype(), c));
      noise.out[static_cast<size_t>(c)] +=
          weights[i] * size * (weight_unit(i) + common) + underflow_unit(a.dtype()) * (1 + size);
    }
  }
  for (int64_t c = 0; c < a.head_dim; ++c) {
    noise.out[static_cast<size_t>(c)] += unit_roundoff(a.out.dtype) * std::abs(out[c]) + underflow_unit(a.out.dtype);
  }
  const DType lse_dtype = a.result.lse.dtype == DType::none ? DType::f32 : a.result.lse.dtype;
  if (std::isfinite(lse)) {
    noise.lse = common + (states * unit + unit_roundoff(lse_dtype)) * (1 + std::abs(lse)) + underflow_unit(lse_dtype);
  }
  return noise;
}

core::WorkspaceSize merge_workspace(const core::Shape& shape, int num_threads) {
  return {.state_bytes = 0, .scratch_bytes = num_threads * row_bytes(core::merge(shape))};
}

void merge_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const MergeArguments& a = core::merge(arguments);
  const int64_t rows = a.batch * a.seqlen * a.heads;
  for_each((rows + kRowsPerTask - 1) / kRowsPerTask, plan.num_threads, a.cancel, [&](int64_t task, int worker) {
    auto* weights = reinterpret_cast<double*>(static_cast<std::byte*>(workspace.scratch) + worker * row_bytes(a));
    double* out = weights + a.num_states;
    for (int64_t idx = task * kRowsPerTask; idx < std::min(rows, (task + 1) * kRowsPerTask); ++idx) {
      const int64_t h = idx % a.heads;
      const int64_t s = idx / a.heads % a.seqlen;
      const int64_t b = idx / a.heads / a.seqlen;
      const double lse = merge_row(a, b, s, h, weights, out);
      store_row(a.result.out.row(b, s, h), a.out.dtype, a.head_dim, out);
      if (a.result.lse.data != nullptr) store_row(a.result.lse.row(b, s, h), a.result.lse.dtype, 1, &lse);
    }
  });
}

}  // namespace tessella::reference
