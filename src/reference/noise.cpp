// A kernel rounds each P_j to the inputs' dtype (relative unit u_p, and beside the row's largest, which is 1 before the
// sum divides, the smallest steps of f16 are no longer relative). exp and the sums that P_j enters cost two units of
// fp32 more. So much is an error of P_j v_j, and of the sum that divides: dropout may leave o few keys of the sum's
// many.
//
// A kernel also errs in s_j, by some units of fp32 for the partial sums of its dot product and for the size of s_j
// where it was rounded: a bias alone is not. Softmax divides by a sum that errs likewise, so an error e of s_j moves
// P_j by P_j (1 - P_j) e, and o by P_j (v_j - o) e: in a row that one key has to itself, by nothing. GPUs split fp32
// operands into terms of which 22 bits remain (docs/numerics.md), an error beside those of the sums.
//
// Of fp8 q, k and v a kernel may take P in e4m3. The largest P of a row is then in (128, 448], so that the smallest
// steps of e4m3, of which half is 2^-10, are up to 2^-17 of it. Hopper's matrix unit sums the products of 32 columns
// and the sum so far with about 13 bits below the largest of them (DeepSeek-V3, arXiv 2412.19437, section 3.5.2), and
// what each of them has below is lost: up to 2^-13 of the largest for each of the small ones, a large one has no such
// bits.
// Other kernels give fp8, or k and v of fewer bits than q of bf16, to a matrix unit of 16 bits: q, k and v times their
// scales are then rounded to bf16 once. Elements of one row and mantissa are all rounded to the same side, so what that
// does is no root of squares: it is computed, and it is nothing where scales are powers of two.
//
// All other errors are independent, so their sum over keys is as large as sqrt(sum (P_j v_j)^2), not sum P_j |v_j|,
// which would hide real defects in long rows; a rounding error has a standard deviation of u / sqrt(3), so the factor 2
// makes it some 3.5 of them. Then the output is rounded once. The weights are fitted: with smaller ones a handful of
// 100,000 random cases failed, small tensors whose plain computation was exact by luck.

#include "reference/noise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.hpp"
#include "reference/scaled_rows.hpp"
#include "reference/score.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::DType;
using core::Sequence;

double prob_unit(const AttentionArguments& p) {
  if (core::is_float8(p.dtype())) return unit_roundoff(DType::f8e4m3fn);
  return p.dtype() == DType::f64 || p.dtype() == DType::f32 ? 0 : unit_roundoff(p.dtype());
}

// The size at which fp32 rounds a score that is a sum or a softcap's; 0 for one that fp32 has.
double rounded_size(const AttentionArguments& p, double score) {
  const bool is_exact = p.dtype() != DType::f64 && static_cast<double>(static_cast<float>(score)) == score;
  return is_exact ? 0 : std::abs(score);
}

// Half of e4m3's smallest step, where the largest P of a row is as small as kernels let it be: as a part of that P.
constexpr double kLeastFloat8Prob = 0x1p-10 / 128;

double unit(const AttentionArguments& p) {
  return p.dtype() == DType::f64 ? 6 * unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
}

// Of exp and of the sums that P enters, relative.
double exp_error(const AttentionArguments& p) { return 2 * unit(p); }

// How far a probability moves, at most, when its score errs: half of what twice the error does, which is
// prob * rest * error while that is small. rest: what the other keys have, 1 - prob. Both as logarithms: a score that
// errs by thousands overtakes one that lies hundreds above it.
double moved(double log_prob, double log_rest, double error) {
  const auto [smaller, larger] = std::minmax({log_prob, log_rest});
  if (smaller == kHidden<double>) return 0;
  constexpr double kLarge = 20;  // from here on expm1 is exp
  const double grown = smaller + (error > kLarge ? 2 * error : std::log(std::expm1(2 * error)));
  return std::exp(larger) / (1 + std::exp(-grown)) / 2;
}

double square(double value) { return value * value; }

// A power of two that scales a row of tiny values to normal ones, subnormal ones as far as a double has one; else 1.
double out_of_tiny(int64_t count, const double* row) {
  double largest = 0;
  for (int64_t c = 0; c < count; ++c) largest = std::max(largest, std::abs(row[c]));
  constexpr int kMost = std::numeric_limits<double>::max_exponent - 1;
  return largest > 0 && largest < 0x1p-300 ? std::ldexp(1.0, std::min(-std::ilogb(largest), kMost)) : 1;
}

bool is_subnormal(double value) { return std::abs(value) < 0x1p-126; }

// What kernels may round q, k and v to before they multiply them; none: not at all.
DType widened(const AttentionArguments& p) {
  const bool is_beside_bf16 = p.dtype() == DType::bf16 && core::is_quantized(p.k().dtype);
  return core::is_float8(p.dtype()) || is_beside_bf16 ? DType::bf16 : DType::none;
}

// What a sum of 32 columns in Hopper's matrix unit for fp8 keeps of its largest term, and products of e4m3 below which
// size have bits below that.
constexpr double kFloat8SumUnit = 0x1p-13, kFloat8Whole = 0x1p-5;
constexpr int64_t kFloat8Columns = 32;

double float8_sum_error(const double* q, const double* k, int64_t columns) {
  double partial = 0, squares = 0;
  for (int64_t begin = 0; begin < columns; begin += kFloat8Columns) {
    const int64_t end = std::min(begin + kFloat8Columns, columns);
    double largest = std::abs(partial);
    for (int64_t c = begin; c < end; ++c) {
      largest = std::max(largest, std::abs(q[c] * k[c]));
      partial += q[c] * k[c];
    }
    const double unit = kFloat8SumUnit * largest;
    squares += square(std::max(unit, kFloat8SumUnit * std::abs(partial)));  // the new sum has as many bits
    for (int64_t c = begin; c < end; ++c) {
      const double term = std::abs(q[c] * k[c]);
      if (term < kFloat8Whole * largest) squares += square(std::min(term, unit));
    }
  }
  return std::sqrt(squares);
}

// q.k and its error. Every partial sum is rounded, even if later terms cancel it. For d terms in random order the
// squares of the partial sums add up to about d / 2 times the squares of the terms. Split operands lose bits of each
// term: up to 2^-23 of it for each operand and 2^-22 for the product left out, seldom as much, so the weight is fitted.
// All kernels have the same floor, even those of the CPU, which split nothing. Terms of numbers below 2^-126 may be
// flushed.
struct Product {
  double value = 0, error = 0;
};
Product product(const AttentionArguments& p, const double* q, const double* k) {
  double partial = 0;
  double partials = 0;
  double terms = 0;
  double flushed = 0;
  double of_q = 0, of_k = 0;  // what the product changes by if q, or k, is rounded
  const DType rounded = widened(p);
  for (int64_t c = 0; c < p.head_dim_qk; ++c) {
    const double term = q[c] * k[c];
    if (is_subnormal(q[c]) || is_subnormal(k[c]) || is_subnormal(term)) flushed += std::abs(term);
    partial += term;
    partials += partial * partial;
    terms += term * term;
    if (rounded == DType::none) continue;
    of_q += (round_to(rounded, q[c]) - q[c]) * k[c];
    of_k += q[c] * (round_to(rounded, k[c]) - k[c]);
  }
  const double of_operands = p.dtype() == DType::f32 ? 4 * terms : 0;
  const double size = std::sqrt(std::max(partials, terms * static_cast<double>(p.head_dim_qk) / 2) + of_operands);
  const double lost = p.dtype() == DType::f64 ? 0 : flushed;
  const double of_sum = core::is_float8(p.dtype()) ? float8_sum_error(q, k, p.head_dim_qk) : 0;
  return {partial, unit(p) * size + lost + of_sum + std::abs(of_q) + std::abs(of_k)};
}

// Of a score. exponent: the argument of exp, which is rounded too.
double score_error(const AttentionArguments& p, double score, double exponent, const Product& of = {}) {
  const double scale = p.scale, capped = soft_capped(p, scale * of.value);
  const double up = std::abs(soft_capped(p, scale * (of.value + of.error)) - capped);
  const double down = std::abs(soft_capped(p, scale * (of.value - of.error)) - capped);
  return unit(p) * std::max(rounded_size(p, score), exponent) / 2 + std::max(up, down);
}

// The sink aside; without a visible key that of the sink.
double largest_score(const Sequence& s, const RowSoftmax<double>& softmax) {
  double top = kHidden<double>;
  for (int64_t j = 0; j < s.len_kv; ++j) top = std::max(top, softmax.scores[j]);
  return std::isfinite(top) ? top : softmax.max;
}

// The probabilities of a row's keys and, behind them, of its sink; as logarithms too, which are finite of those that
// are 0 in double.
struct Probs {
  std::vector<double> of, logs;
  size_t top = 0;                          // the largest
  double log_below_top = kHidden<double>;  // of all others together: near 1 the difference to 1 has no bits left
  double top_key = 0;                      // the largest of a key
  double log_rest(size_t n) const { return n == top ? log_below_top : std::log1p(-of[n]); }
};

Probs probs_of(const Sequence& s, const RowSoftmax<double>& softmax, double sink_score) {
  const size_t count = static_cast<size_t>(s.len_kv) + 1;
  Probs probs{std::vector<double>(count), std::vector<double>(count)};
  for (size_t n = 0; n < count; ++n) {
    const double score = n + 1 < count ? softmax.scores[n] : sink_score;
    probs.of[n] = score == kHidden<double> ? 0 : softmax.prob(score);
    probs.logs[n] = score == kHidden<double> ? score : score - softmax.max - std::log(softmax.sum);
  }
  probs.top_key = s.len_kv == 0 ? 0 : *std::max_element(probs.of.begin(), std::prev(probs.of.end()));
  probs.top = static_cast<size_t>(std::ranges::max_element(probs.of) - probs.of.begin());
  double largest = kHidden<double>, sum = 0;
  for (size_t n = 0; n < count; ++n) {
    if (n != probs.top) largest = std::max(largest, probs.logs[n]);
  }
  if (largest == kHidden<double>) return probs;
  for (size_t n = 0; n < count; ++n) {
    if (n != probs.top) sum += std::exp(probs.logs[n] - largest);
  }
  probs.log_below_top = largest + std::log(sum);
  return probs;
}

}  // namespace

double sum_unit(const AttentionArguments& p) { return p.dtype() == DType::f64 ? unit_roundoff(DType::f64) : 0; }

RowErrors row_errors(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                     const RowSoftmax<double>& softmax, const double* out) {
  const int64_t kv_head = head / p.group();
  const double sink_score = sink<double>(p, head);
  const Probs probs = probs_of(s, softmax, sink_score);
  const double least_prob =
      core::is_float8(p.dtype()) ? kLeastFloat8Prob * probs.top_key : underflow_unit(p.dtype()) / softmax.sum;
  const size_t at_sink = probs.of.size() - 1;
  std::vector<double> q(static_cast<size_t>(p.head_dim_qk)), k(q.size()), v(static_cast<size_t>(p.head_dim_v));
  load_q(p, s, i, head, q.data());
  RowErrors errors{std::vector<double>(probs.of.size()), std::vector<double>(at_sink), std::vector<double>(v.size())};

  // The squared errors of out, summed over keys, of roundings and of scores. They are scaled by `up`, because dropout
  // may leave a row so small that double cannot hold the squares.
  std::vector<double> squares(v.size()), of_scores(v.size()), partial_out(v.size()), of_rest(v.size());
  std::vector<double> of_rounded_v(v.size());
  std::vector<double> furthest(v.size());  // a value from out: a mean never leaves its values
  // And not so far up that those of the smallest steps of P overflow, which are larger than such a row.
  const double up = std::min(out_of_tiny(p.head_dim_v, out), 0x1p380 / least_prob);
  double partial_sum = 0, of_partial_sums = 0, of_sum = 0, of_top = 0, of_lower = 0;
  const DropoutFactor dropout(p);
  for (size_t n = 0; n <= at_sink; ++n) {
    const double prob = probs.of[n];
    if (probs.logs[n] == kHidden<double>) continue;
    double error = 0, factor = 0;
    if (n == at_sink) {  // a key without a value
      // Kernels take it against the largest score, which may be far below.
      const double exponent = std::max(softmax.max - sink_score, std::abs(sink_score - largest_score(s, softmax)));
      error = score_error(p, sink_score, exponent);
      std::ranges::fill(v, 0.0);
    } else {
      const auto j = static_cast<int64_t>(n);
      load_k(p, s, j, kv_head, k.data());
      load_v(p, s, j, kv_head, v.data());
      const Product of = product(p, q.data(), k.data());
      errors.products[n] = of.error;
      error = score_error(p, softmax.scores[n], softmax.max - softmax.scores[n], of);
      factor = dropout.at<double>(s, head, i, j);
    }
    const double log_rest = probs.log_rest(n), of_score = moved(probs.logs[n], log_rest, error);
    errors.probs[n] = exp_error(p) * prob + of_score;
    errors.lse += prob * (exp_error(p) + error);
    of_lower = std::max(of_lower, error + probs.logs[n] / 2);
    partial_sum += prob;
    of_partial_sums += sum_unit(p) * partial_sum;
    of_sum += square(prob * exp_error(p));
    if (n == probs.top) of_top = of_score / prob;
    const double of_rounding = (prob_unit(p) + exp_error(p)) * (prob * factor) + least_prob * factor;
    const double weight = n == probs.top ? 0 : std::exp(probs.logs[n] - probs.log_below_top);
    const double by_score = n == probs.top ? 0 : of_score / std::exp(log_rest);
    for (size_t c = 0; c < v.size(); ++c) {
      partial_out[c] += prob * factor * v[c];
      squares[c] += square(of_rounding * v[c] * up) + square(sum_unit(p) * partial_out[c] * up);
      if (const DType rounded = widened(p); rounded != DType::none) {
        of_rounded_v[c] += prob * factor * (round_to(rounded, v[c]) - v[c]);
      }
      const double apart = factor * v[c] - out[c];
      furthest[c] = std::max(furthest[c], std::abs(apart));
      of_rest[c] += weight * apart;
      of_scores[c] += square(by_score * apart * up);
    }
  }
  // Equal probabilities, as of a saturated softcap, are all rounded to the same side when they are added.
  of_sum += square(of_partial_sums);
  errors.lse = std::max(errors.lse, of_lower) + of_partial_sums;
  // What the largest gains the others lose together.
  for (size_t c = 0; c < v.size(); ++c) {
    of_scores[c] = std::min(of_scores[c] + square(of_top * of_rest[c] * up), square(furthest[c] / 2 * up));
    errors.out[c] =
        std::sqrt(squares[c] + of_scores[c] + of_sum * square(out[c] * up)) / up + std::abs(of_rounded_v[c]);
  }
  return errors;
}

RowNoise row_noise(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i,
                   const RowSoftmax<double>& softmax, const double* out) {
  const RowErrors errors = row_errors(p, s, head, i, softmax, out);
  RowNoise noise{errors.out, errors.out};
  const OutScale of = out_scale(p, s, i, head);
  for (size_t c = 0; c < noise.out.size(); ++c) {
    noise.result[c] = 2 * errors.out[c];
    const double stored = std::abs(within_out(p, of, out[c]));
    const double of_rounding = unit_roundoff(p.out_dtype()) * stored + underflow_unit(p.out_dtype());
    noise.out[c] = noise.result[c] + of_rounding * std::abs(static_cast<double>(of.scale));
  }
  // The LSE errs as the scores do; it is rounded once more, and twice by kernels that turn it from base 2 to base e. It
  // is the sum of the largest score and of a logarithm, which cancel where a sink is far above.
  const double lse_unit = unit_roundoff(p.lse().dtype == DType::f64 ? DType::f64 : DType::f32);
  const double top = largest_score(s, softmax);
  const double terms = std::abs(top) + std::abs(softmax.lse - top);
  noise.lse = 2 * errors.lse + (std::isfinite(softmax.lse) ? 2 * lse_unit * std::max(std::abs(softmax.lse), terms) : 0);
  return noise;
}

}  // namespace tessella::reference
