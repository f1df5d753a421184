#include "reference/backward.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "reference/attention.hpp"
#include "reference/element.hpp"
#include "reference/score.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::DType;
using core::Gradient;
using core::Name;
using core::Sequence;

template <typename Real>
std::vector<Real> load_vector(const std::byte* data, DType dtype, int64_t count) {
  std::vector<Real> values(static_cast<size_t>(count));
  load_row(data, dtype, count, values.data());
  return values;
}

template <typename Real>
Real dot(const std::vector<Real>& a, const std::vector<Real>& b) {
  Real sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

template <typename Real>
RowSoftmax<Real> softmax_of(const std::vector<Real>& scores, Real sink) {
  Real max = sink;
  for (const Real score : scores) max = std::max(max, score);
  if (max == kHidden<Real>) return {scores.data(), 0, 0, max};
  Real sum = std::exp(sink - max);
  for (const Real score : scores) sum += std::exp(score - max);
  return {scores.data(), max, sum, max + std::log(sum)};
}

// The plain computation rounds P to the inputs' dtype where it meets v, and its out once.
template <typename Real>
void compute_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, RowBackward<Real>& row) {
  core::end_if_cancelled(p.cancel);
  const auto keys = static_cast<size_t>(s.len_kv);
  const int64_t kv_head = head / p.group();
  const int64_t row_q = s.row_q + i;
  const auto at = [&](Name name) { return p.tensors[name].row(s.batch_idx, row_q, head); };
  const auto q = load_vector<Real>(at(Name::q), p.dtype(), p.head_dim_qk);
  const auto d_out = load_vector<Real>(at(Name::d_out), p.tensors[Name::d_out].dtype, p.head_dim_v);
  const Real d_lse =
      p.features.has(core::Feature::d_lse) ? load<Real>(at(Name::d_lse), p.tensors[Name::d_lse].dtype, 0) : Real{0};
  for (std::vector<Real>* values :
       {&row.products, &row.probs, &row.dropout, &row.d_probs, &row.d_scores, &row.d_products}) {
    values->assign(keys, 0);
  }
  constexpr bool kIsPlain = std::is_same_v<Real, float>;
  const DType probs_dtype = kIsPlain ? p.dtype() : DType::none;
  row.scores.assign(keys, kHidden<Real>);
  row.out.assign(d_out.size(), 0);
  row.delta = row.d_sink = 0;
  row.sees_key = false;
  std::vector<Real> k(q.size()), v(d_out.size());

  for (int64_t j = 0; j < s.len_kv; ++j) {
    if (!core::visible(s, head, i, j)) continue;
    const auto n = static_cast<size_t>(j);
    row.sees_key = true;
    load_row(p.row_of(p.k(), s.batch_idx, s.row_kv + j, kv_head), p.k().dtype, p.head_dim_qk, k.data());
    row.products[n] = dot(q, k);
    row.scores[n] = score(p, s, head, i, j, row.products[n]);
  }
  const Real sink_score = sink<Real>(p, head);
  row.softmax = softmax_of(row.scores, sink_score);
  if (row.softmax.lse == kHidden<Real>) return;  // it sees nothing, not even a sink

  const DropoutFactor dropout(p);
  for (int64_t j = 0; j < s.len_kv; ++j) {
    const auto n = static_cast<size_t>(j);
    if (row.scores[n] == kHidden<Real>) continue;
    load_row(p.row_of(p.v(), s.batch_idx, s.row_kv + j, kv_head), p.v().dtype, p.head_dim_v, v.data());
    row.probs[n] = row.softmax.prob(row.scores[n]);
    row.dropout[n] = dropout.at<Real>(s, head, i, j);
    if (row.dropout[n] == 0) continue;
    row.d_probs[n] = row.dropout[n] * dot(d_out, v);
    const Real weight = round_to(probs_dtype, row.probs[n]) * row.dropout[n];
    for (size_t c = 0; c < v.size(); ++c) row.out[c] += weight * v[c];
  }
  row.delta = -d_lse;
  if constexpr (kIsPlain) {
    for (Real& value : row.out) value = round_to(p.out_dtype(), value);
    if (row.sees_key) row.delta += dot(d_out, row.out);
  } else {
    row.delta += dot(row.probs, row.d_probs);
  }
  for (size_t n = 0; n < keys; ++n) {
    if (row.scores[n] == kHidden<Real>) continue;
    row.d_scores[n] = row.probs[n] * (row.d_probs[n] - row.delta);
    row.d_products[n] = row.d_scores[n] * score_derivative(p, row.products[n]);
  }
  row.d_sink = sink_score == kHidden<Real> ? Real{0} : -row.softmax.prob(sink_score) * row.delta;
}

// probs_dtype: what P and dS are rounded to where they meet q, k and d_out; none = not rounded.
template <typename Real>
HeadGradients<Real> compute_head(const AttentionArguments& p, const Sequence& s, int64_t kv_head, DType probs_dtype) {
  const int64_t d_qk = p.head_dim_qk, d_v = p.head_dim_v;
  HeadGradients<Real> of;
  of.dq.assign(static_cast<size_t>(s.len_q * p.group() * d_qk), 0);
  of.dk.assign(static_cast<size_t>(s.len_kv * d_qk), 0);
  of.dv.assign(static_cast<size_t>(s.len_kv * d_v), 0);
  const auto scale = static_cast<Real>(p.scale);
  RowBackward<Real> row;
  std::vector<Real> q(static_cast<size_t>(d_qk)), k(q.size()), d_out(static_cast<size_t>(d_v));
  for (int64_t i = 0; i < s.len_q; ++i) {
    for (int64_t in_group = 0; in_group < p.group(); ++in_group) {
      const int64_t head = kv_head * p.group() + in_group;
      compute_row(p, s, head, i, row);
      load_row(p.q().row(s.batch_idx, s.row_q + i, head), p.dtype(), d_qk, q.data());
      const core::Operand& from = p.tensors[Name::d_out];
      load_row(from.row(s.batch_idx, s.row_q + i, head), from.dtype, d_v, d_out.data());
      Real* dq = of.dq.data() + (i * p.group() + in_group) * d_qk;
      for (int64_t j = 0; j < s.len_kv; ++j) {
        const auto n = static_cast<size_t>(j);
        if (row.scores[n] == kHidden<Real> || row.softmax.lse == kHidden<Real>) continue;
        load_row(p.row_of(p.k(), s.batch_idx, s.row_kv + j, kv_head), p.k().dtype, d_qk, k.data());
        const Real d_product = round_to(probs_dtype, row.d_products[n]);
        const Real prob = round_to(probs_dtype, row.probs[n] * row.dropout[n]);
        Real* dk = of.dk.data() + j * d_qk;
        Real* dv = of.dv.data() + j * d_v;
        for (size_t c = 0; c < q.size(); ++c) dq[c] += d_product * k[c];
        for (size_t c = 0; c < q.size(); ++c) dk[c] += d_product * q[c];
        for (size_t c = 0; c < d_out.size(); ++c) dv[c] += prob * d_out[c];
      }
    }
  }
  for (Real& value : of.dq) value *= scale;
  for (Real& value : of.dk) value *= scale;
  return of;
}

template <typename Real>
std::vector<Real> compute_score_gradient(const AttentionArguments& p, Gradient gradient, int64_t b, int64_t head,
                                         int64_t i) {
  const core::ScoreGradient& to = target(p, gradient);
  std::vector<Real> sums(static_cast<size_t>(score_axes(p, gradient).keys));
  RowBackward<Real> row;
  for_each_query(p, gradient, b, head, i, [&](const Sequence& s, int64_t h, int64_t query) {
    compute_row(p, s, h, query, row);
    if (gradient == Gradient::d_sink) sums[0] += row.d_sink;
    for (int64_t j = 0; j < s.len_kv && gradient != Gradient::d_sink; ++j) {
      const Real d_score = row.d_scores[static_cast<size_t>(j)];
      if (gradient == Gradient::d_bias) {
        sums[to.kv_stride == 0 ? 0 : static_cast<size_t>(s.slot_kv + j)] += d_score;
      } else {
        sums[0] -= d_score * static_cast<Real>(alibi_distance(p, s, query, j));
      }
    }
  });
  return sums;
}

// Adds to what is there, or replaces it.
void put(std::byte* data, DType dtype, int64_t count, const double* values, bool accumulates) {
  std::vector<double> row(values, values + count);
  for (int64_t c = 0; accumulates && c < count; ++c) row[static_cast<size_t>(c)] += load<double>(data, dtype, c);
  store_row(data, dtype, count, row.data());
}

// Rows of dq, or of dk and dv, that belong to no query or key of a sequence are zero.
void put_zeros(const AttentionArguments& p, Name name, Gradient gradient, int64_t dim) {
  const core::Operand& to = p.tensors[name];
  if (to.data == nullptr || p.accumulates(gradient)) return;
  const bool is_of_q = name == Name::dq;
  const auto [batch, rows] = is_of_q ? p.axes_q() : p.axes_kv();
  const std::vector<double> zeros(static_cast<size_t>(dim));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < (is_of_q ? p.heads_q : p.heads_kv); ++head) {
        store_row(to.row(b, row, head), to.dtype, dim, zeros.data());
      }
    }
  }
}

void put_head(const AttentionArguments& p, const Sequence& s, int64_t kv_head, const HeadGradients<double>& of) {
  const auto rows = [&](Name name, Gradient gradient, int64_t row_begin, int64_t count, int64_t dim, int64_t heads,
                        int64_t first_head, const std::vector<double>& values) {
    const core::Operand& to = p.tensors[name];
    if (to.data == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        put(to.row(s.batch_idx, row_begin + i, first_head + head), to.dtype, dim,
            values.data() + (i * heads + head) * dim, p.accumulates(gradient));
      }
    }
  };
  rows(Name::dq, Gradient::dq, s.row_q, s.len_q, p.head_dim_qk, p.group(), kv_head * p.group(), of.dq);
  rows(Name::dk, Gradient::dk, s.row_kv, s.len_kv, p.head_dim_qk, 1, kv_head, of.dk);
  rows(Name::dv, Gradient::dv, s.row_kv, s.len_kv, p.head_dim_v, 1, kv_head, of.dv);
}

}  // namespace

void backward_row(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, RowBackward<double>& row) {
  compute_row(p, s, head, i, row);
}

HeadGradients<double> head_gradients(const AttentionArguments& p, const Sequence& s, int64_t kv_head) {
  return compute_head<double>(p, s, kv_head, DType::none);
}

HeadGradients<float> plain_head_gradients(const AttentionArguments& p, const Sequence& s, int64_t kv_head) {
  return compute_head<float>(p, s, kv_head, p.dtype());
}

std::vector<double> score_gradient(const AttentionArguments& p, Gradient gradient, int64_t b, int64_t head, int64_t i) {
  return compute_score_gradient<double>(p, gradient, b, head, i);
}

std::vector<float> plain_score_gradient(const AttentionArguments& p, Gradient gradient, int64_t b, int64_t head,
                                        int64_t i) {
  return compute_score_gradient<float>(p, gradient, b, head, i);
}

const core::ScoreGradient& target(const AttentionArguments& p, Gradient gradient) {
  switch (gradient) {
    case Gradient::d_sink: return p.d_sink;
    case Gradient::d_alibi_slopes: return p.d_alibi_slopes;
    default: return p.d_bias;
  }
}

ScoreAxes score_axes(const AttentionArguments& p, Gradient gradient) {
  const core::ScoreGradient& to = target(p, gradient);
  const auto axis = [](int64_t stride, int64_t size) { return stride == 0 ? 1 : size; };
  return {axis(to.batch_stride, p.batch), axis(to.head_stride, p.heads_q), axis(to.q_stride, to.queries),
          axis(to.kv_stride, to.keys)};
}

void zero_operands(const AttentionArguments& p) {
  put_zeros(p, Name::dq, Gradient::dq, p.head_dim_qk);
  put_zeros(p, Name::dk, Gradient::dk, p.head_dim_qk);
  put_zeros(p, Name::dv, Gradient::dv, p.head_dim_v);
}

void write_score_gradients(const AttentionArguments& p, int num_threads) {
  for (const Gradient gradient : {Gradient::d_bias, Gradient::d_sink, Gradient::d_alibi_slopes}) {
    const core::ScoreGradient& to = target(p, gradient);
    if (to.data == nullptr) continue;
    const auto [batch, heads, queries, keys] = score_axes(p, gradient);
    for_each(batch * heads * queries, num_threads, p.cancel, [&, heads = heads, queries = queries](int64_t task, int) {
      const int64_t b = task / queries / heads, head = task / queries % heads, i = task % queries;
      const std::vector<double> sums = score_gradient(p, gradient, b, head, i);
      for (size_t j = 0; j < sums.size(); ++j) {
        const int64_t at = to.index(b, head, i, static_cast<int64_t>(j));
        put(to.data + core::bytes_of(to.dtype, at), to.dtype, 1, &sums[j], p.accumulates(gradient));
      }
    });
  }
}

core::WorkspaceSize backward_workspace(const core::Shape&, int) { return {}; }

void backward_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace, void*) {
  const AttentionArguments& p = core::attention(arguments);
  zero_operands(p);
  for_each(p.batch * p.heads_kv, plan.num_threads, p.cancel, [&](int64_t task, int) {
    const Sequence s = core::sequence(p, task / p.heads_kv);
    put_head(p, s, task % p.heads_kv, head_gradients(p, s, task % p.heads_kv));
  });
  write_score_gradients(p, plan.num_threads);
}

}  // namespace tessella::reference
