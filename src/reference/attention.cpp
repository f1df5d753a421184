// Attention by plain loops (Vaswani et al., arXiv 1706.03762, equation 1, with the features of the library):
//   s_j = score(q.k_j),  P_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)),  o = sum_j dropout(P_j) v_j.
// It stores one row of scores, so memory is linear. Hidden keys are never read: they may hold anything.

#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "core/thread_limit.hpp"
#include "reference/element.hpp"
#include "reference/key_rows.hpp"
#include "reference/rest.hpp"
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

// probs_dtype: what P is rounded to before it meets v; none = not rounded. Throws core::Cancelled.
template <typename Real>
RowSoftmax<Real> row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, DType probs_dtype,
                     Real* scratch, Real* out) {
  Real* scores = scratch;
  Real* q = scores + s.len_kv;
  Real* kv = q + p.head_dim_qk;  // row j of k, then of v
  const int64_t kv_head = head / p.group();
  load_row(p.q().row(s.batch_idx, s.row_q + i, head), p.dtype(), p.head_dim_qk, q);

  Real max = sink<Real>(p, head);
  for (int64_t j = 0; j < s.len_kv; ++j) {
    core::end_if_cancelled(p.cancel);
    scores[j] = kHidden<Real>;
    if (!core::visible(p, s, head, i, j)) continue;
    load_k(p, s, j, kv_head, kv);
    scores[j] = score(p, s, head, i, j, dot(q, kv, p.head_dim_qk));
    max = std::max(max, scores[j]);
  }
  // If no key is visible, -inf - -inf would be NaN; any finite maximum gives the correct sum, 0.
  if (max == kHidden<Real>) max = 0;

  Real sum = std::exp(sink<Real>(p, head) - max);
  for (int64_t j = 0; j < s.len_kv; ++j) sum += std::exp(scores[j] - max);
  const RowSoftmax<Real> softmax{scores, max, sum, sum == 0 ? kHidden<Real> : max + std::log(sum)};

  const DropoutFactor dropout(p);
  std::fill(out, out + p.head_dim_v, Real{0});
  for (int64_t j = 0; j < s.len_kv; ++j) {
    core::end_if_cancelled(p.cancel);
    if (scores[j] == kHidden<Real>) continue;
    // Rounded before dropout scales it up, by as much as 65536, which is beyond f16.
    const Real prob = round_to(probs_dtype, softmax.prob(scores[j])) * dropout.at<Real>(s, head, i, j);
    load_v(p, s, j, kv_head, kv);
    for (int64_t c = 0; c < p.head_dim_v; ++c) out[c] += prob * kv[c];
  }
  return softmax;
}

constexpr int64_t kRowsPerTask = 16;

}  // namespace

int64_t row_scratch(const core::AttentionShape& p) {
  return p.seqlen_kv + p.head_dim_qk + std::max(p.head_dim_qk, p.head_dim_v);
}

RowSoftmax<double> attention_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                                 double* scratch, double* out) {
  return row<double>(p, s, head, i, DType::none, scratch, out);
}

float plain_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, float* scratch, float* out) {
  return row<float>(p, s, head, i, p.dtype(), scratch, out).lse;
}

int num_threads(int requested) {
  const int limit = core::thread_limit();
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
  for_each(p.batch * p.heads_q * blocks, plan.num_threads, p.cancel, [&](int64_t task, int worker) {
    const Sequence s = core::sequence(p, task / (p.heads_q * blocks));
    const int64_t head = task / blocks % p.heads_q;
    const int64_t begin = task % blocks * kRowsPerTask;
    const int64_t end = std::min(begin + kRowsPerTask, s.slots_q);
    double* out = static_cast<double*>(workspace.scratch) + worker * doubles;
    for (int64_t i = begin; i < std::min(end, s.len_q); ++i) {
      const double lse = attention_row(p, s, head, i, out + p.head_dim_v, out).lse;
      store_row(p.out().row(s.batch_idx, s.row_q + i, head), p.out_dtype(), p.head_dim_v, out);
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
