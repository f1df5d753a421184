// A kernel errs in P_j as standard attention does (noise.cpp) and by the error of the LSE that it is given; in dP_j by
// the partial sums of its dot product; in delta by those of its own and by the error of the out that it is given. LSE
// and out err as those of a right forward do, found here from the oracle's: those of the call say nothing. P and dS are
// rounded to the inputs' dtype where they meet another operand. Errors of keys and of queries are independent, so sums
// over them are as large as the root of the sum of squares; those of delta and of LSE are one for all keys of a query,
// so in sums over keys they add with the signs of their terms: LSE's cancels where dS sums to 0.

#include "reference/backward_noise.hpp"

#include <algorithm>
#include <cmath>

#include "reference/element.hpp"
#include "reference/noise.hpp"
#include "reference/score.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::DType;
using core::Gradient;
using core::Name;
using core::Sequence;

double unit(const AttentionArguments& p) {
  return p.dtype() == DType::f64 ? 4 * unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
}
// Rounding of P and dS as operands of a product.
double rounding(const AttentionArguments& p, double value) {
  const bool is_wide = p.dtype() == DType::f64 || p.dtype() == DType::f32;
  const double size = std::abs(value), relative = is_wide ? unit(p) : unit_roundoff(p.dtype());
  return std::max(relative * size, std::min(underflow_unit(p.dtype()), size));
}
// Of an LSE beyond 2^17, fp32 has too few bits to tell P: it may be off by a factor. P is held to this much of itself.
constexpr double kMostOfLse = 0x1p-7;
// Rounding of out and LSE, which are given in their own dtype. With f64 little else errs, so the weight covers the
// largest of many errors.
double given_unit(const AttentionArguments& p, DType dtype) {
  return (p.dtype() == DType::f64 && dtype != DType::f64 ? 2 : 1) * unit_roundoff(dtype);
}
double square(double value) { return value * value; }

// Size of the partial sums of a dot product.
double partial_sums(const std::vector<double>& a, const std::vector<double>& b) {
  double partial = 0, partials = 0, terms = 0;
  for (size_t c = 0; c < a.size(); ++c) {
    partial += a[c] * b[c];
    partials += square(partial);
    terms += square(a[c] * b[c]);
  }
  return std::sqrt(std::max(partials, terms * static_cast<double>(a.size()) / 2));
}

// The errors of a query's row.
struct QueryErrors {
  std::vector<double> probs;        // P_j D_j, not yet rounded
  std::vector<double> d_scores;     // dS_j, not yet rounded, but for what is one for all keys
  std::vector<double> derivatives;  // softcap'_j
  std::vector<double> truncations;  // P_j, of itself, to one side in all rows
  double delta = 0;
  double lse = 0;  // relative to every P_j
};

class QueryNoise {
 public:
  QueryNoise(const AttentionArguments& p, const Sequence& s) : p_(p), s_(s) {}

  // The row as the oracle has it, and what it errs by.
  void run(int64_t head, int64_t i) {
    backward_row(p_, s_, head, i, row);
    const auto keys = static_cast<size_t>(s_.len_kv);
    errors = {std::vector<double>(keys), std::vector<double>(keys), std::vector<double>(keys),
              std::vector<double>(keys)};
    if (row.softmax.lse == kHidden<double>) return;
    const RowErrors of_row = row_errors(p_, s_, head, i, row.softmax, row.out.data());
    const core::Operand& from = p_.tensors[Name::d_out];
    const auto d_out = load(from.row(s_.batch_idx, s_.row_q + i, head), from.dtype, p_.head_dim_v);
    errors.delta = row.sees_key ? delta_error(of_row, d_out) : unit(p_) * std::abs(row.delta);
    errors.lse = std::min(of_row.lse + std::max(unit(p_), given_unit(p_, p_.lse().dtype)) * std::abs(row.softmax.lse),
                          kMostOfLse);
    double partial_delta = 0, of_delta = 0;
    for (int64_t j = 0; j < s_.len_kv; ++j) {
      const auto n = static_cast<size_t>(j);
      if (row.scores[n] == kHidden<double> || row.probs[n] == 0) continue;
      const auto v =
          load(p_.row_of(p_.v(), s_.batch_idx, s_.row_kv + j, head / p_.group()), p_.v().dtype, p_.head_dim_v);
      const double of_d_prob = unit(p_) * (row.dropout[n] * partial_sums(d_out, v) + std::abs(row.d_probs[n]));
      errors.probs[n] = row.dropout[n] * of_row.probs[n];
      errors.d_scores[n] = std::hypot((row.d_probs[n] - row.delta) * of_row.probs[n], row.probs[n] * of_d_prob);
      errors.derivatives[n] = derivative_error(row.products[n], of_row.products[n]);
      errors.truncations[n] = truncation(row.products[n]);
      of_delta += square(partial_delta += row.probs[n] * row.d_probs[n]);
    }
    errors.delta += sum_unit(p_) * std::sqrt(of_delta);
  }

  RowBackward<double> row;
  QueryErrors errors;

 private:
  static std::vector<double> load(const std::byte* data, DType dtype, int64_t count) {
    std::vector<double> values(static_cast<size_t>(count));
    load_row(data, dtype, count, values.data());
    return values;
  }

  double delta_error(const RowErrors& of_row, const std::vector<double>& d_out) const {
    const double relative = given_unit(p_, p_.out_dtype()), least = underflow_unit(p_.out_dtype());
    double squares = 0;
    for (size_t c = 0; c < d_out.size(); ++c) {
      const double size = std::abs(row.out[c]);
      squares += square(d_out[c] * (of_row.out[c] + std::max(relative * size, std::min(least, size))));
    }
    return unit(p_) * (partial_sums(d_out, row.out) + std::abs(row.delta)) + std::sqrt(squares);
  }

  // Matrix units truncate sums of fp32 below their last bit: twelve times in 32 columns, always toward zero, and by
  // half of that bit in the mean. So a score of f32 is too small by up to 6 u of itself, of which of_output()
  // doubles 3. An LSE that is given is not truncated with it. Like the LSE's errors it is limited.
  double truncation(double product) const {
    if (p_.dtype() != DType::f32) return 0;
    const double error = 3 * unit(p_) * p_.scale * product * score_derivative(p_, product);
    return std::clamp(error, -kMostOfLse, kMostOfLse);
  }

  double derivative_error(double product, double error) const {
    const double at = score_derivative(p_, product);
    return std::max(std::abs(score_derivative(p_, product + error) - at),
                    std::abs(score_derivative(p_, product - error) - at));
  }

  const AttentionArguments& p_;
  const Sequence& s_;
};

// The error bound of an output whose standard error is `error`. Squares of errors of a value as small as kTiny vanish:
// its relative error is that of an exponent of a thousand.
double of_output(double error, double value, DType dtype) {
  constexpr double kTiny = 0x1p-450;
  if (std::abs(value) < kTiny) error = std::max(error, 1000 * unit_roundoff(DType::f64) * std::abs(value));
  return 2 * error + unit_roundoff(dtype) * std::abs(value) + underflow_unit(dtype);
}

}  // namespace

HeadGradients<double> head_noise(const AttentionArguments& p, const Sequence& s, int64_t kv_head,
                                 const HeadGradients<double>& of) {
  const auto d_qk = static_cast<size_t>(p.head_dim_qk), d_v = static_cast<size_t>(p.head_dim_v);
  const double scale = std::abs(p.scale);
  HeadGradients<double> noise{std::vector<double>(of.dq.size()), std::vector<double>(of.dk.size()),
                              std::vector<double>(of.dv.size())};
  std::vector<double> partial_dk(of.dk.size()), partial_dv(of.dv.size()), partial_dq(d_qk);
  std::vector<double> truncated_dk(of.dk.size()), truncated_dv(of.dv.size()), truncated_dq(d_qk);
  std::vector<double> q(d_qk), k(d_qk), d_out(d_v), own(d_qk), of_delta(d_qk), of_lse(d_qk);
  QueryNoise at(p, s);
  for (int64_t i = 0; i < s.len_q; ++i) {
    for (int64_t in_group = 0; in_group < p.group(); ++in_group) {
      const int64_t head = kv_head * p.group() + in_group;
      at.run(head, i);
      if (at.row.softmax.lse == kHidden<double>) continue;
      load_row(p.q().row(s.batch_idx, s.row_q + i, head), p.q().dtype, p.head_dim_qk, q.data());
      const core::Operand& from = p.tensors[Name::d_out];
      load_row(from.row(s.batch_idx, s.row_q + i, head), from.dtype, p.head_dim_v, d_out.data());
      for (std::vector<double>* values : {&own, &of_delta, &of_lse, &partial_dq, &truncated_dq}) {
        std::fill(values->begin(), values->end(), 0.0);
      }
      for (int64_t j = 0; j < s.len_kv; ++j) {
        const auto n = static_cast<size_t>(j);
        if (at.row.probs[n] == 0) continue;
        load_row(p.row_of(p.k(), s.batch_idx, s.row_kv + j, kv_head), p.k().dtype, p.head_dim_qk, k.data());
        const double derivative = score_derivative(p, at.row.products[n]);
        const double d_product = at.row.d_products[n];
        const double independent = std::hypot(at.errors.d_scores[n] * derivative, rounding(p, d_product),
                                              (unit(p) + at.errors.derivatives[n]) * at.row.d_scores[n]);
        const double shared = (at.row.probs[n] * at.errors.delta) * derivative;
        const double of_prob = at.row.probs[n] * at.row.dropout[n];
        // Rounded before dropout's factor, which f16 does not hold.
        const double of_rounding = rounding(p, at.row.probs[n]) * at.row.dropout[n];
        const double truncation = at.errors.truncations[n];
        for (size_t c = 0; c < d_qk; ++c) {
          partial_dq[c] += d_product * k[c];
          own[c] += square(independent * k[c]) + square(sum_unit(p) * partial_dq[c]);
          of_delta[c] += shared * k[c];
          of_lse[c] += at.errors.lse * d_product * k[c];
          truncated_dq[c] += truncation * d_product * k[c];
          partial_dk[n * d_qk + c] += d_product * q[c];
          truncated_dk[n * d_qk + c] += truncation * d_product * q[c];
          noise.dk[n * d_qk + c] +=
              square(q[c]) * (square(independent) + square(shared) + square(at.errors.lse * d_product)) +
              square(sum_unit(p) * partial_dk[n * d_qk + c]);
        }
        for (size_t c = 0; c < d_v; ++c) {
          partial_dv[n * d_v + c] += of_prob * d_out[c];
          truncated_dv[n * d_v + c] += truncation * of_prob * d_out[c];
          noise.dv[n * d_v + c] +=
              square(d_out[c]) * (square(at.errors.probs[n]) + square(of_rounding) + square(at.errors.lse * of_prob)) +
              square(sum_unit(p) * partial_dv[n * d_v + c]);
        }
      }
      for (size_t c = 0; c < d_qk; ++c) {
        const size_t to = static_cast<size_t>(i * p.group() + in_group) * d_qk + c;
        const double error =
            std::sqrt(own[c]) + std::abs(of_delta[c]) + std::abs(of_lse[c]) + std::abs(truncated_dq[c]);
        noise.dq[to] = of_output(scale * error, of.dq[to], p.tensors[Name::dq].dtype);
      }
    }
  }
  for (size_t n = 0; n < noise.dk.size(); ++n) {
    const double error = std::sqrt(noise.dk[n]) + std::abs(truncated_dk[n]);
    noise.dk[n] = of_output(scale * error, of.dk[n], p.tensors[Name::dk].dtype);
  }
  for (size_t n = 0; n < noise.dv.size(); ++n) {
    noise.dv[n] = of_output(std::sqrt(noise.dv[n]) + std::abs(truncated_dv[n]), of.dv[n], p.tensors[Name::dv].dtype);
  }
  return noise;
}

std::vector<double> score_noise(const AttentionArguments& p, Gradient gradient, int64_t b, int64_t head, int64_t i,
                                const std::vector<double>& of) {
  std::vector<double> squares(of.size()), sizes(of.size()), truncated(of.size());
  for_each_query(p, gradient, b, head, i, [&](const Sequence& s, int64_t h, int64_t query) {
    QueryNoise at(p, s);
    at.run(h, query);
    if (at.row.softmax.lse == kHidden<double>) return;
    if (gradient == Gradient::d_sink) {
      const double prob = std::exp(sink<double>(p, h) - at.row.softmax.lse);
      squares[0] += square(prob * at.errors.delta) + square(at.row.d_sink * (at.errors.lse + 4 * unit(p)));
      sizes[0] += std::abs(at.row.d_sink);
      return;
    }
    double of_delta = 0, of_lse = 0;  // of all keys
    for (int64_t j = 0; j < s.len_kv; ++j) {
      const auto n = static_cast<size_t>(j);
      const double factor = gradient == Gradient::d_bias ? 1 : static_cast<double>(alibi_distance(p, s, query, j));
      const size_t to = of.size() == 1 ? 0 : static_cast<size_t>(s.slot_kv + j);
      squares[to] += square(factor * std::hypot(at.errors.d_scores[n], 4 * unit(p) * at.row.d_scores[n]));
      const double by_delta = factor * at.row.probs[n] * at.errors.delta;
      const double by_lse = factor * at.row.d_scores[n] * at.errors.lse;
      of_delta += by_delta;
      of_lse += by_lse;
      if (of.size() > 1) squares[to] += square(by_delta) + square(by_lse);
      truncated[to] += factor * at.errors.truncations[n] * at.row.d_scores[n];
      sizes[to] += std::abs(factor * at.row.d_scores[n]);
    }
    if (of.size() == 1) squares[0] += square(std::abs(of_delta) + std::abs(of_lse));
  });
  const DType dtype = gradient == Gradient::d_bias ? p.d_bias.dtype : DType::f32;
  std::vector<double> noise(of.size());
  // The sums themselves are rounded, at their size.
  for (size_t n = 0; n < of.size(); ++n) {
    noise[n] = of_output(std::sqrt(squares[n]) + std::abs(truncated[n]) + 2 * unit(p) * sizes[n], of[n], dtype);
  }
  return noise;
}

}  // namespace tessella::reference
