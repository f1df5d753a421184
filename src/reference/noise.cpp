// A kernel rounds each P_j to the inputs' dtype (relative unit u_p, and beside the row's largest, which is 1 before the
// sum divides, the smallest steps of f16 are no longer relative). It errs in s_j by some units of fp32 for its exp, for
// the partial sums of its dot product, and for the size of s_j where it was rounded: a bias alone is not. An absolute
// error of s_j is a relative one of P_j, so a key counts as much as its P_j: one that padding's bias of -1e9 takes out
// counts nothing. GPUs split fp32 operands into terms of which 22 bits remain (docs/numerics.md), an error beside those
// of the sums. These errors are independent, so their sum over keys is as large as sqrt(sum (P_j v_j)^2), not
// sum P_j |v_j|, which would hide real defects in long rows; a rounding error has a standard deviation of u / sqrt(3),
// so the factor 2 makes it some 3.5 of them. The sum that divides errs by the same, and with it all of o: dropout may
// leave o few keys of the sum's many. Then the output is rounded once. The weights are fitted: with smaller ones a
// handful of 100,000 random cases failed, small tensors whose plain computation was exact by luck.

#include "reference/noise.hpp"

#include <algorithm>
#include <cmath>

#include "reference/element.hpp"
#include "reference/key_rows.hpp"
#include "reference/score.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::DType;
using core::Sequence;

double prob_unit(const AttentionArguments& p) {
  return p.dtype() == DType::f64 || p.dtype() == DType::f32 ? 0 : unit_roundoff(p.dtype());
}

// The size at which fp32 rounds a score that is a sum or a softcap's; 0 for one that fp32 has.
double rounded_size(const AttentionArguments& p, double score) {
  const bool is_exact = p.dtype() != DType::f64 && static_cast<double>(static_cast<float>(score)) == score;
  return is_exact ? 0 : std::abs(score);
}

// magnitude: of the rounded score and of what exp is given; product: root of the squares of all that its dot product
// rounded.
double score_unit(const AttentionArguments& p, double magnitude, double product) {
  const double unit = p.dtype() == DType::f64 ? 6 * unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
  return unit * (2 + magnitude / 2 + product);
}

double square(double value) { return value * value; }

// A power of two that scales a row of tiny values to normal ones; else 1.
double out_of_tiny(int64_t count, const double* row) {
  double largest = 0;
  for (int64_t c = 0; c < count; ++c) largest = std::max(largest, std::abs(row[c]));
  return largest > 0 && largest < 0x1p-300 ? std::ldexp(1.0, -std::ilogb(largest)) : 1;
}

bool is_subnormal(double value) { return std::abs(value) < 0x1p-126; }

// |scale| times the size of the partial sums of q.k. Every partial sum is rounded, even if softcap hides it or later
// terms cancel it. For d terms in random order the squares of the partial sums add up to about d / 2 times the squares
// of the terms. Split operands lose bits of each term: up to 2^-23 of it for each operand and 2^-22 for the product
// left out, seldom as much, so the weight is fitted. All kernels have the same floor, even those of the CPU, which
// split nothing. Terms of numbers below 2^-126 may be flushed.
double product_size(const AttentionArguments& p, const double* q, const double* k) {
  double partial = 0;
  double partials = 0;
  double terms = 0;
  double flushed = 0;
  for (int64_t c = 0; c < p.head_dim_qk; ++c) {
    const double term = q[c] * k[c];
    if (is_subnormal(q[c]) || is_subnormal(k[c]) || is_subnormal(term)) flushed += std::abs(term);
    partial += term;
    partials += partial * partial;
    terms += term * term;
  }
  const double of_operands = p.dtype() == DType::f32 ? 4 * terms : 0;
  const double size = std::sqrt(std::max(partials, terms * static_cast<double>(p.head_dim_qk) / 2) + of_operands);
  const double lost = p.dtype() == DType::f64 ? 0 : flushed / unit_roundoff(DType::f32);
  return std::abs(static_cast<double>(p.scale)) * (size + lost);
}

// The sink aside; without a visible key that of the sink.
double largest_score(const Sequence& s, const RowSoftmax<double>& softmax) {
  double top = kHidden<double>;
  for (int64_t j = 0; j < s.len_kv; ++j) top = std::max(top, softmax.scores[j]);
  return std::isfinite(top) ? top : softmax.max;
}

}  // namespace

double sum_unit(const AttentionArguments& p) { return p.dtype() == DType::f64 ? unit_roundoff(DType::f64) : 0; }

double score_error(const AttentionArguments& p, double score, double exponent, const double* q, const double* k) {
  return score_unit(p, std::max(rounded_size(p, score), exponent), product_size(p, q, k));
}

RowNoise row_noise(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                   const RowSoftmax<double>& softmax, const double* out) {
  const int64_t kv_head = head / p.group();
  std::vector<double> q(static_cast<size_t>(p.head_dim_qk)), k(q.size()), v(static_cast<size_t>(p.head_dim_v));
  load_row(p.q().row(s.batch_idx, s.row_q + i, head), p.dtype(), p.head_dim_qk, q.data());

  const double top = largest_score(s, softmax);
  double lse_error = 0;
  double sum_error = 0;  // square of the sum's relative error
  if (p.features.has(core::Feature::sink)) {
    const double logit = sink<double>(p, head);
    // Kernels take it against the largest score, which may be far below.
    const double exponent = std::max(softmax.max - logit, std::abs(logit - top));
    lse_error = softmax.prob(logit) * score_unit(p, std::max(rounded_size(p, logit), exponent), 0);
    sum_error = lse_error * lse_error;
  }

  // The squared errors of out, summed over keys. They are scaled by `up`, because dropout may leave a row so small that
  // double cannot hold the squares.
  std::vector<double> squares(v.size());
  const double up = out_of_tiny(p.head_dim_v, out);
  double partial_sum = 0;
  std::vector<double> partial_out(v.size());
  const DropoutFactor dropout(p);
  for (int64_t j = 0; j < s.len_kv; ++j) {
    const double score = softmax.scores[j];
    if (score == kHidden<double>) continue;
    const double weight = softmax.prob(score);
    if (weight == 0) continue;
    load_k(p, s, j, kv_head, k.data());
    // The argument of exp, s_j - max, is rounded too.
    const double unit = score_error(p, score, softmax.max - score, q.data(), k.data());
    lse_error += weight * unit;
    partial_sum += weight;
    sum_error += weight * weight * unit * unit + square(sum_unit(p) * partial_sum);

    const double factor = dropout.at<double>(s, head, i, j);
    const double prob_error =
        (prob_unit(p) + unit) * (weight * factor) + underflow_unit(p.dtype()) * (factor / softmax.sum);
    load_v(p, s, j, kv_head, v.data());
    for (size_t c = 0; c < v.size(); ++c) {
      partial_out[c] += weight * factor * v[c];
      squares[c] += square(prob_error * v[c] * up) + square(sum_unit(p) * partial_out[c] * up);
    }
  }

  RowNoise noise{std::vector<double>(v.size())};
  for (size_t c = 0; c < v.size(); ++c) {
    const double value = std::abs(out[c]);
    noise.out[c] = 2 * std::sqrt(squares[c] + sum_error * square(value * up)) / up +
                   unit_roundoff(p.out_dtype()) * value + underflow_unit(p.out_dtype());
  }
  // The LSE errs as the scores do; it is rounded once more, and twice by kernels that turn it from base 2 to base e. It
  // is the sum of the largest score and of a logarithm, which cancel where a sink is far above.
  const double lse_unit = unit_roundoff(p.lse().dtype == DType::f64 ? DType::f64 : DType::f32);
  const double terms = std::abs(top) + std::abs(softmax.lse - top);
  noise.lse = 2 * lse_error + (std::isfinite(softmax.lse) ? 2 * lse_unit * std::max(std::abs(softmax.lse), terms) : 0);
  return noise;
}

}  // namespace tessella::reference
