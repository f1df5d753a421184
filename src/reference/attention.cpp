// Attention by plain loops (Vaswani et al., arXiv 1706.03762, equation 1, with the features of the library):
//   s_j = score(q.k_j),  P_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)),  o = sum_j dropout(P_j) v_j.
// It stores one row of scores, so memory is linear. Hidden keys are never read: they may hold anything.

#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "operations/attention/amax.hpp"
#include "process/thread_limit.hpp"
#include "reference/element.hpp"
#include "reference/rest.hpp"
#include "reference/scaled_rows.hpp"
#include "reference/score.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::DType;
using core::Sequence;

template <typename Real>
Real dot(const Real* a, const Real* b, int64_t count) {
  Real sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += a[c] * b[c];
  return sum;
}

// What P is rounded to before it meets v. Of fp8 the plain computation uses the whole range: the row's largest P
// becomes e4m3's largest number, 448 (FlashAttention-3, arXiv 2407.08608, keeps P in e4m3 whatever q is).
struct ProbsRounding {
  DType dtype = DType::none;  // not rounded
  template <typename Real>
  Real operator()(Real prob, Real largest) const {
    if (!core::is_float8(dtype)) return round_to(dtype, prob);
    if (largest == 0) return 0;  // a sink has all
    return round_to(DType::f8e4m3fn, prob / largest * portable::kLargestFloat8) * (largest / portable::kLargestFloat8);
  }
};

// Throws core::Cancelled.
template <typename Real>
RowSoftmax<Real> row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                     const ProbsRounding& rounded, Real* scratch, Real* out) {
  Real* scores = scratch;
  Real* q = scores + s.len_kv;
  Real* kv = q + p.head_dim_qk;  // row j of k, then of v
  const int64_t kv_head = head / p.group();
  load_q(p, s, i, head, q);

  Real top = kHidden<Real>;
  for (int64_t j = 0; j < s.len_kv; ++j) {
    core::end_if_cancelled(p.cancel);
    scores[j] = kHidden<Real>;
    if (!core::visible(s, head, i, j)) continue;
    load_k(p, s, j, kv_head, kv);
    scores[j] = score(p, s, head, i, j, dot(q, kv, p.head_dim_qk));
    top = std::max(top, scores[j]);
  }
  Real max = std::max(sink<Real>(p, head), top);
  // If no key is visible, -inf - -inf would be NaN; any finite maximum gives the correct sum, 0.
  if (max == kHidden<Real>) max = 0;

  Real sum = std::exp(sink<Real>(p, head) - max);
  for (int64_t j = 0; j < s.len_kv; ++j) sum += std::exp(scores[j] - max);
  const RowSoftmax<Real> softmax{scores, max, sum, sum == 0 ? kHidden<Real> : max + std::log(sum)};

  const DropoutFactor dropout(p);
  const Real largest = softmax.prob(top);
  std::fill(out, out + p.head_dim_v, Real{0});
  for (int64_t j = 0; j < s.len_kv; ++j) {
    core::end_if_cancelled(p.cancel);
    if (scores[j] == kHidden<Real>) continue;
    // Rounded before dropout scales it up, by as much as 65536, which is beyond f16.
    const Real prob = rounded(softmax.prob(scores[j]), largest) * dropout.at<Real>(s, head, i, j);
    load_v(p, s, j, kv_head, kv);
    for (int64_t c = 0; c < p.head_dim_v; ++c) out[c] += prob * kv[c];
  }
  return softmax;
}

// amax and out of a query from its result, which it changes.
void store_result(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, double* result) {
  if (p.tensors[core::Name::amax].data != nullptr) {
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      core::raise_amax(p, s.batch_idx, s.row_q + i, head, static_cast<float>(result[c]));
    }
  }
  const OutScale of = out_scale(p, s, i, head);
  for (int64_t c = 0; c < p.head_dim_v; ++c) result[c] = within_out(p, of, result[c]);
  store_row(p.out().row(s.batch_idx, s.row_q + i, head), p.out_dtype(), p.head_dim_v, result);
}

constexpr int64_t kRowsPerTask = 16;

}  // namespace

int64_t row_scratch(const core::AttentionShape& p) {
  return p.seqlen_kv + p.head_dim_qk + std::max(p.head_dim_qk, p.head_dim_v);
}

RowSoftmax<double> attention_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                                 double* scratch, double* out) {
  return row<double>(p, s, head, i, ProbsRounding{}, scratch, out);
}

float plain_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, float* scratch, float* out) {
  return row<float>(p, s, head, i, ProbsRounding{p.dtype()}, scratch, out).lse;
}

int num_threads(int requested) {
  const int limit = process::thread_limit();
  return requested > 0 ? std::min(requested, limit) : limit;
}

core::WorkspaceSize attention_workspace(const core::Shape& shape, int num_threads) {
  const core::AttentionShape& p = core::attention(shape);
  const int64_t doubles = row_scratch(p) + p.head_dim_v;
  return {.scratch_bytes = num_threads * doubles * static_cast<int64_t>(sizeof(double))};
}

void attention_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const AttentionArguments& p = core::attention(arguments);
  const int64_t blocks = (p.seqlen_q + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t doubles = row_scratch(p) + p.head_dim_v;
  core::clear_amax(p);
  for_each(p.batch * p.heads_q * blocks, plan.num_threads, p.cancel, [&](int64_t task, int worker) {
    const Sequence s = core::sequence(p, task / (p.heads_q * blocks));
    const int64_t head = task / blocks % p.heads_q;
    const int64_t begin = task % blocks * kRowsPerTask;
    const int64_t end = std::min(begin + kRowsPerTask, s.slots_q);
    double* out = static_cast<double*>(workspace.scratch) + worker * doubles;
    for (int64_t i = begin; i < std::min(end, s.len_q); ++i) {
      const double lse = attention_row(p, s, head, i, out + p.head_dim_v, out).lse;
      store_result(p, s, head, i, out);
      if (p.lse().data != nullptr) store_row(p.lse().row(s.batch_idx, s.row_q + i, head), p.lse().dtype, 1, &lse);
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
