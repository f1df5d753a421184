// The oracle of gradients: plain loops, in float64 for the reference and in fp32 for the plain computation that scales
// every tolerance (docs/backward.md has the derivation).
//
// Of one query and every key j of its sequence, with P = exp(S - LSE), D dropout's factor and dO the gradient of out:
//   dP_j = D_j (dO . v_j),  delta = sum_j P_j dP_j = dO . out,  dS_j = P_j (dP_j - delta + dLSE),
//   dq = scale sum_j dS_j softcap'_j k_j,  dk_j = scale sum_i dS_ij softcap'_ij q_i,  dv_j = sum_i D_ij P_ij dO_i,
//   d_bias_ij = dS_ij,  d_slope = -sum_ij dS_ij distance_ij,  d_sink = sum_i exp(sink - LSE_i) (dLSE_i - delta_i).
// Both find LSE, out and delta by themselves, from q, k, v, d_out and the options: what a call gives as lse and out
// says nothing about what is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::reference {

// One query's gradients of its scores, one entry a key of the sequence: 0 where it is hidden.
template <typename Real>
struct RowBackward {
  std::vector<Real> products;    // q . k_j, of visible keys
  std::vector<Real> scores;      // -inf where hidden
  std::vector<Real> probs;       // P_j
  std::vector<Real> dropout;     // D_j, dropout's factor
  std::vector<Real> d_probs;     // dP_j
  std::vector<Real> d_scores;    // dS_j
  std::vector<Real> d_products;  // dS_j softcap'_j
  std::vector<Real> out;
  bool sees_key = false;  // else q and dO of the query are ignored
  RowSoftmax<Real> softmax{};
  Real delta = 0;   // delta - dLSE
  Real d_sink = 0;  // this query's term
};

void backward_row(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                  RowBackward<double>& row);

// Gradients of one KV head of a sequence.
template <typename Real>
struct HeadGradients {
  std::vector<Real> dq;  // (len_q, group, head_dim_qk)
  std::vector<Real> dk;  // (len_kv, head_dim_qk)
  std::vector<Real> dv;  // (len_kv, head_dim_v)
};
HeadGradients<double> head_gradients(const core::AttentionArguments& arguments, const core::Sequence& sequence,
                                     int64_t kv_head);
HeadGradients<float> plain_head_gradients(const core::AttentionArguments& arguments, const core::Sequence& sequence,
                                          int64_t kv_head);

// Row (b, head, i) of the gradient of a tensor that scores read; an index is 0 on an axis that is summed. d_bias has an
// entry for each slot of the key axis, d_sink and d_alibi_slopes have one entry.
std::vector<double> score_gradient(const core::AttentionArguments& arguments, core::Gradient gradient, int64_t b,
                                   int64_t head, int64_t i);
std::vector<float> plain_score_gradient(const core::AttentionArguments& arguments, core::Gradient gradient, int64_t b,
                                        int64_t head, int64_t i);

// The axes of such a gradient, and where it is.
struct ScoreAxes {
  int64_t batch, heads, queries, keys;
};
ScoreAxes score_axes(const core::AttentionArguments& arguments, core::Gradient gradient);
const core::ScoreGradient& target(const core::AttentionArguments& arguments, core::Gradient gradient);

// Calls fn(sequence, head, query) for the queries that row (b, head, i) of it sums over, in order.
template <typename Fn>
void for_each_query(const core::AttentionArguments& p, core::Gradient gradient, int64_t b, int64_t head, int64_t i,
                    Fn&& fn) {
  const core::ScoreGradient& to = target(p, gradient);
  for (int64_t batch_idx = b; batch_idx < (to.batch_stride == 0 ? p.batch : b + 1); ++batch_idx) {
    const core::Sequence s = core::sequence(p, batch_idx);
    for (int64_t h = head; h < (to.head_stride == 0 ? p.heads_q : head + 1); ++h) {
      const int64_t end = to.q_stride == 0 ? s.len_q : std::min(s.len_q, i + 1);
      for (int64_t query = i; query < end; ++query) fn(s, h, query);
    }
  }
}

// Zeros in dq, dk and dv where they do not accumulate: for rows that belong to no query or key of a sequence.
void zero_operands(const core::AttentionArguments& arguments);
// Writes d_bias, d_sink and d_alibi_slopes, those that are wanted.
void write_score_gradients(const core::AttentionArguments& arguments, int num_threads);

core::WorkspaceSize backward_workspace(const core::Shape& shape, int num_threads);
void backward_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::reference
