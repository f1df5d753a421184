// Attention by plain loops (Vaswani et al., arXiv 1706.03762, equation 1, with the features of the library):
//   s_j = score(q.k_j),  P_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)),  o = sum_j dropout(P_j) v_j.
// A row of scores is all that is kept, so memory is linear. Hidden keys are never read: they may hold anything.

#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/environment.hpp"
#include "core/plan.hpp"
#include "reference/element.hpp"
#include "reference/rest.hpp"
#include "reference/score.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {
namespace {

using core::DType;
using core::Problem;
using core::Sequence;

// Noise of one row, from its scores and normalised probabilities.
// A kernel rounds each P_j to the inputs' dtype (relative unit u_p). It errs in s_j by some units of fp32 for its exp,
// for the size of s_j and for the partial sums of the dot product (about sqrt(d) of it): an absolute error of s_j is a
// relative one of P_j. These errors are independent, so their sum over keys is as large as sqrt(sum (P_j v_j)^2), not
// sum P_j |v_j|, which would hide real defects in long rows; a rounding error has a standard deviation of u / sqrt(3),
// so the factor 2 makes it some 3.5 of them. Then the output is rounded once. The weights are fitted:
// with smaller ones a handful of 100,000 random cases failed, small tensors whose plain computation was exact by luck.
struct NoiseUnits {
  double prob;
  double score;
};

NoiseUnits noise_units(const Problem& p, double largest_score) {
  const double units = 2 + largest_score / 2 + std::sqrt(p.head_dim_qk) / 4 * (1 + largest_score / 4);
  if (p.dtype == DType::f64) return {0, 4 * unit_roundoff(DType::f64) * units};
  return {p.dtype == DType::f32 ? 0 : unit_roundoff(p.dtype), unit_roundoff(DType::f32) * units};
}

// probs_dtype: what P is rounded to before it meets V; none = not rounded.
template <typename Real>
Real row(const Problem& p, const Sequence& s, int64_t head, int64_t i, DType probs_dtype, Real* scratch, Real* out,
         RowNoise* noise) {
  Real* scores = scratch;
  Real* q = scores + s.len_kv;
  Real* kv = q + p.head_dim_qk;
  const int64_t kv_head = head / p.group();
  load_row(p.q.row(s.batch_idx, s.row_q + i, head), p.dtype, p.head_dim_qk, q);

  Real largest = sink<Real>(p, head);
  Real largest_magnitude = 0;
  for (int64_t j = 0; j < s.len_kv; ++j) {
    scores[j] = kHidden<Real>;
    if (!core::visible(p, s, head, i, j)) continue;
    load_row(p.k.row(s.batch_idx, s.row_kv + j, kv_head), p.dtype, p.head_dim_qk, kv);
    Real product = 0;
    for (int64_t c = 0; c < p.head_dim_qk; ++c) product += q[c] * kv[c];
    scores[j] = score(p, s, head, i, j, product);
    largest = std::max(largest, scores[j]);
    // What softcap hides of a product's size is still what its sum was rounded at.
    const Real magnitude = std::max(std::abs(scores[j]), std::abs(static_cast<Real>(p.scale) * product));
    if (std::isfinite(magnitude)) largest_magnitude = std::max(largest_magnitude, magnitude);
  }
  // Where nothing is visible -inf - -inf would be NaN; any finite maximum gives the sum 0 that is due.
  if (largest == kHidden<Real>) largest = 0;

  Real sum = std::exp(sink<Real>(p, head) - largest);
  for (int64_t j = 0; j < s.len_kv; ++j) sum += std::exp(scores[j] - largest);

  const DropoutFactor dropout(p);
  std::fill(out, out + p.head_dim_v, Real{0});
  if (noise) noise->out.assign(static_cast<size_t>(p.head_dim_v), 0);
  for (int64_t j = 0; j < s.len_kv; ++j) {
    if (scores[j] == kHidden<Real>) continue;
    Real prob = std::exp(scores[j] - largest) / sum * dropout.at<Real>(s, head, i, j);
    if (probs_dtype != DType::none) prob = round_to(probs_dtype, prob);
    load_row(p.v.row(s.batch_idx, s.row_kv + j, kv_head), p.dtype, p.head_dim_v, kv);
    for (int64_t c = 0; c < p.head_dim_v; ++c) out[c] += prob * kv[c];
    if (!noise) continue;
    for (int64_t c = 0; c < p.head_dim_v; ++c) noise->out[c] += static_cast<double>(prob * kv[c] * prob * kv[c]);
  }
  const Real lse = sum == 0 ? kHidden<Real> : largest + std::log(sum);
  if (noise) {
    const NoiseUnits units = noise_units(p, static_cast<double>(largest_magnitude));
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      noise->out[c] = 2 * (units.prob + units.score) * std::sqrt(noise->out[c]) +
                      unit_roundoff(p.out_dtype) * std::abs(static_cast<double>(out[c])) + underflow_unit(p.out_dtype);
    }
    // The LSE errs as the scores do; it is rounded once more, and twice by kernels that turn it from base 2 to base e.
    const double lse_unit = unit_roundoff(p.lse.dtype == DType::f64 ? DType::f64 : DType::f32);
    noise->lse = 2 * units.score + (std::isfinite(lse) ? 2 * lse_unit * std::abs(static_cast<double>(lse)) : 0);
  }
  return lse;
}

constexpr int64_t kRowsPerItem = 16;

}  // namespace

int64_t row_scratch(const Problem& p) { return p.seqlen_kv + p.head_dim_qk + std::max(p.head_dim_qk, p.head_dim_v); }

double attention_row(const Problem& p, const Sequence& s, int64_t head, int64_t i, double* scratch, double* out,
                     RowNoise* noise) {
  return row<double>(p, s, head, i, DType::none, scratch, out, noise);
}

float plain_row(const Problem& p, const Sequence& s, int64_t head, int64_t i, float* scratch, float* out) {
  return row<float>(p, s, head, i, p.dtype, scratch, out, nullptr);
}

int num_threads(int requested) {
  if (requested > 0) return requested;
  const int available = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int limit = core::environment_num_threads();
  return limit > 0 ? std::min(limit, available) : available;
}

core::WorkspaceSize attention_workspace(const Problem& p, int num_threads) {
  const int64_t doubles = row_scratch(p) + p.head_dim_v;
  return {.scratch_bytes = num_threads * doubles * static_cast<int64_t>(sizeof(double))};
}

void attention_run(const Problem& p, const core::Plan& plan, core::Workspace workspace) {
  const int64_t blocks = (p.seqlen_q + kRowsPerItem - 1) / kRowsPerItem;
  const int64_t doubles = row_scratch(p) + p.head_dim_v;
  for_each(p.batch * p.heads_q * blocks, plan.num_threads, [&](int64_t item, int worker) {
    const Sequence s = core::sequence(p, item / (p.heads_q * blocks));
    const int64_t head = item / blocks % p.heads_q;
    const int64_t begin = item % blocks * kRowsPerItem;
    const int64_t end = std::min(begin + kRowsPerItem, s.slots_q);
    double* out = static_cast<double*>(workspace.scratch) + worker * doubles;
    for (int64_t i = begin; i < std::min(end, s.len_q); ++i) {
      const double lse = attention_row(p, s, head, i, out + p.head_dim_v, out);
      store_row(p.out.row(s.batch_idx, s.row_q + i, head), p.out_dtype, p.head_dim_v, out);
      if (p.lse.data != nullptr) store_row(p.lse.row(s.batch_idx, s.row_q + i, head), p.lse.dtype, 1, &lse);
    }
    std::fill(out, out + p.head_dim_v, 0.0);
    store_unused(p, s, head, std::max(begin, s.len_q), end, out);
  });
  auto* zeros = static_cast<double*>(workspace.scratch);
  const Sequence unused = rest(p);
  for (int64_t head = 0; head < p.heads_q && unused.slots_q > 0; ++head) {
    std::fill(zeros, zeros + p.head_dim_v, 0.0);
    store_unused(p, unused, head, 0, unused.slots_q, zeros);
  }
}

}  // namespace tessella::reference
