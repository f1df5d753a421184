// Attention by plain loops (Vaswani et al., arXiv 1706.03762, equation 1, with the features of the library):
//   s_j = score(q.k_j),  P_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)),  o = sum_j dropout(P_j) v_j.
// A row of scores is all that is kept, so memory is linear. Hidden keys are never read: they may hold anything.

#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>

#include "core/plan.hpp"
#include "core/thread_limit.hpp"
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
// A kernel rounds each P_j to the inputs' dtype (relative unit u_p, and beside the row's largest, which is 1 before the
// sum divides, the smallest steps of f16 are no longer relative). It errs in s_j by some units of fp32 for its exp, for
// the size of s_j and for the partial sums of its dot product: an absolute error of s_j is a relative one of P_j, so a
// key counts as much as its P_j: one that padding's bias of -1e9 takes out counts nothing. GPUs split fp32 operands
// into terms of which 22 bits remain (docs/numerics.md), an error beside those of the sums. These errors are
// independent, so their sum over keys is as large as sqrt(sum (P_j v_j)^2), not sum P_j |v_j|, which would hide real
// defects in long rows; a rounding error has a standard deviation of u / sqrt(3), so the factor 2 makes it some 3.5 of
// them. The sum that divides errs by the same, and with it all of o: dropout may leave o few keys of the sum's many.
// Then the output is rounded once. The weights are fitted: with smaller ones a handful of 100,000 random cases failed,
// small tensors whose plain computation was exact by luck.
double prob_unit(const Problem& p) {
  return p.dtype == DType::f64 || p.dtype == DType::f32 ? 0 : unit_roundoff(p.dtype);
}

// magnitude: of the score and of what exp is given; product: root of the squares of all that its dot product rounded.
double score_unit(const Problem& p, double magnitude, double product) {
  const double unit = p.dtype == DType::f64 ? 4 * unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
  return unit * (2 + magnitude / 2 + product);
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

  if (noise) noise->products.assign(static_cast<size_t>(s.len_kv), 0);
  Real largest = sink<Real>(p, head);
  for (int64_t j = 0; j < s.len_kv; ++j) {
    scores[j] = kHidden<Real>;
    if (!core::visible(p, s, head, i, j)) continue;
    load_row(p.row_of(p.k, s.batch_idx, s.row_kv + j, kv_head), p.dtype, p.head_dim_qk, kv);
    Real product = 0;
    for (int64_t c = 0; c < p.head_dim_qk; ++c) product += q[c] * kv[c];
    scores[j] = score(p, s, head, i, j, product);
    largest = std::max(largest, scores[j]);
    if (noise) {
      // Every partial sum is rounded, whatever softcap hides of it or cancels in it. Of d terms in random order the
      // squares of the partial sums add up to about d / 2 of the terms' squares. What split operands lose is each
      // term's own: up to 2^-23 of it by either operand and 2^-22 by the product left out, seldom as much; the weight
      // is fitted. One floor for all kernels: those of the CPU split nothing and get it too.
      double partial = 0;
      double partials = 0;
      double terms = 0;
      for (int64_t c = 0; c < p.head_dim_qk; ++c) {
        const auto term = static_cast<double>(q[c] * kv[c]);
        partial += term;
        partials += partial * partial;
        terms += term * term;
      }
      const double of_operands = p.dtype == DType::f32 ? 4 * terms : 0;
      const double size = std::sqrt(std::max(partials, terms * static_cast<double>(p.head_dim_qk) / 2) + of_operands);
      noise->products[static_cast<size_t>(j)] = std::abs(static_cast<double>(p.scale)) * size;
    }
  }
  // Where nothing is visible -inf - -inf would be NaN; any finite maximum gives the sum 0 that is due.
  if (largest == kHidden<Real>) largest = 0;

  Real sum = std::exp(sink<Real>(p, head) - largest);
  for (int64_t j = 0; j < s.len_kv; ++j) sum += std::exp(scores[j] - largest);

  const DropoutFactor dropout(p);
  std::fill(out, out + p.head_dim_v, Real{0});
  double lse_noise = 0;
  double sum_noise = 0;  // square of the sum's relative error
  if (noise) {
    noise->out.assign(static_cast<size_t>(p.head_dim_v), 0);
    if (p.features.has(core::Feature::sink)) {
      const auto sink_score = static_cast<double>(sink<Real>(p, head));
      lse_noise = static_cast<double>(std::exp(sink<Real>(p, head) - largest) / sum) *
                  score_unit(p, std::max(std::abs(sink_score), static_cast<double>(largest) - sink_score), 0);
      sum_noise = lse_noise * lse_noise;
    }
  }
  for (int64_t j = 0; j < s.len_kv; ++j) {
    if (scores[j] == kHidden<Real>) continue;
    const Real weight = std::exp(scores[j] - largest) / sum;
    const Real kept = dropout.at<Real>(s, head, i, j);
    Real prob = weight * kept;
    if (probs_dtype != DType::none) prob = round_to(probs_dtype, prob);
    load_row(p.row_of(p.v, s.batch_idx, s.row_kv + j, kv_head), p.dtype, p.head_dim_v, kv);
    for (int64_t c = 0; c < p.head_dim_v; ++c) out[c] += prob * kv[c];
    if (!noise || weight == 0) continue;
    // What exp is given, s_j - m, is rounded too.
    const auto exponent = static_cast<double>(largest - scores[j]);
    const double magnitude = std::max(std::abs(static_cast<double>(scores[j])), exponent);
    const double unit = score_unit(p, magnitude, noise->products[static_cast<size_t>(j)]);
    lse_noise += static_cast<double>(weight) * unit;
    sum_noise += static_cast<double>(weight * weight) * unit * unit;
    const double prob_error =
        (prob_unit(p) + unit) * static_cast<double>(prob) + underflow_unit(p.dtype) * static_cast<double>(kept / sum);
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      const double error = prob_error * static_cast<double>(kv[c]);
      noise->out[c] += error * error;
    }
  }
  const Real lse = sum == 0 ? kHidden<Real> : largest + std::log(sum);
  if (noise) {
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      const double value = std::abs(static_cast<double>(out[c]));
      noise->out[c] = 2 * std::sqrt(noise->out[c] + sum_noise * value * value) + unit_roundoff(p.out_dtype) * value +
                      underflow_unit(p.out_dtype);
    }
    // The LSE errs as the scores do; it is rounded once more, and twice by kernels that turn it from base 2 to base e.
    const double lse_unit = unit_roundoff(p.lse.dtype == DType::f64 ? DType::f64 : DType::f32);
    noise->lse = 2 * lse_noise + (std::isfinite(lse) ? 2 * lse_unit * std::abs(static_cast<double>(lse)) : 0);
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
  const int limit = core::thread_limit();
  return requested > 0 ? std::min(requested, limit) : limit;
}

core::WorkspaceSize attention_workspace(const Problem& p, int num_threads) {
  const int64_t doubles = row_scratch(p) + p.head_dim_v;
  return {.scratch_bytes = num_threads * doubles * static_cast<int64_t>(sizeof(double))};
}

void attention_run(const Problem& p, const core::Plan& plan, core::Workspace workspace, void*) {
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
