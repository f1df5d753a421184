// Gradients against the reference, whole KV heads of sequences at a time: dk and dv sum over all their queries.
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/backward.hpp"
#include "reference/backward_noise.hpp"
#include "reference/check.hpp"
#include "reference/element.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::Gradient;
using core::Name;
using core::Sequence;

// tanh amplifies roundings, and gradients have its derivative beside it.
double factor(const AttentionArguments& p) { return p.features.has(core::Feature::softcap) ? 3 : 2; }

class Checker {
 public:
  explicit Checker(const AttentionArguments& p)
      : p_(p), is_f64_(p.dtype() == core::DType::f64), of_(kTensors.size(), Comparison(factor(p))) {}

  void head(const Sequence& s, int64_t kv_head) {
    const HeadGradients<double> expected = head_gradients(p_, s, kv_head);
    const HeadGradients<double> noise = head_noise(p_, s, kv_head, expected);
    const HeadGradients<float> plain = is_f64_ ? HeadGradients<float>() : plain_head_gradients(p_, s, kv_head);
    const int64_t group = p_.group(), first = kv_head * group;
    rows(Name::dq, s.batch_idx, s.row_q, s.len_q, first, group, p_.head_dim_qk, expected.dq, plain.dq, noise.dq);
    rows(Name::dk, s.batch_idx, s.row_kv, s.len_kv, kv_head, 1, p_.head_dim_qk, expected.dk, plain.dk, noise.dk);
    rows(Name::dv, s.batch_idx, s.row_kv, s.len_kv, kv_head, 1, p_.head_dim_v, expected.dv, plain.dv, noise.dv);
    num_rows_ += s.len_q * group;
  }

  // Rows of a tensor outside of its sequences, which are zero.
  void unused(Name name, int64_t batch_idx, int64_t begin, int64_t end, int64_t heads, int64_t dim) {
    const auto count = static_cast<size_t>((end - begin) * heads * dim);
    const std::vector<double> zeros(count);
    rows(name, batch_idx, begin, end - begin, 0, heads, dim, zeros, std::vector<float>(count), zeros);
  }

  void score_row(Gradient gradient, int64_t b, int64_t head, int64_t i) {
    const core::ScoreGradient& to = target(p_, gradient);
    const std::vector<double> expected = score_gradient(p_, gradient, b, head, i);
    const std::vector<double> noise = score_noise(p_, gradient, b, head, i, expected);
    const std::vector<float> plain = is_f64_ ? std::vector<float>() : plain_score_gradient(p_, gradient, b, head, i);
    for (size_t n = 0; n < expected.size(); ++n) {
      const auto j = static_cast<int64_t>(n);
      const double got = load<double>(to.data, to.dtype, to.index(b, head, i, j));
      compare(name(gradient), {b, head, i, j}, got, to.dtype, expected[n], is_f64_ ? expected[n] : plain[n], noise[n]);
    }
  }

  CheckReport report() const {
    size_t worst = kTensors.size();
    for (size_t n = 0; n < kTensors.size(); ++n) {
      if (!of_[n].passed()) worst = std::min(worst, n);
    }
    for (size_t n = 0; n < kTensors.size() && worst == kTensors.size(); ++n) {
      if (is_there_[n]) worst = n;
    }
    if (worst == kTensors.size()) return {.rows = num_rows_, .tensor = kTensors[0]};
    const Comparison& at = of_[worst];
    return {.rows = num_rows_,
            .max_error = at.max_error(),
            .plain_error = at.plain_error(),
            .tolerance = at.tolerance(),
            .passed = at.passed(),
            .worst_index = at.worst_index(),
            .worst_got = at.worst_got(),
            .worst_expected = at.worst_expected(),
            .tensor = kTensors[worst]};
  }

 private:
  static constexpr std::array kTensors = {"dq", "dk", "dv", "d_bias", "d_sink", "d_alibi_slopes"};

  static const char* name(Gradient gradient) {
    switch (gradient) {
      case Gradient::d_bias: return kTensors[3];
      case Gradient::d_sink: return kTensors[4];
      default: return kTensors[5];
    }
  }

  // (count, heads, dim) of a tensor from a row and a head on.
  void rows(Name name, int64_t batch_idx, int64_t row, int64_t count, int64_t head, int64_t heads, int64_t dim,
            const std::vector<double>& expected, const std::vector<float>& plain, const std::vector<double>& noise) {
    const core::Operand& t = p_.tensors[name];
    if (t.data == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        const std::byte* got = t.row(batch_idx, row + i, head + h);
        for (int64_t c = 0; c < dim; ++c) {
          const auto n = static_cast<size_t>((i * heads + h) * dim + c);
          // Plain computation of doubles is the reference itself.
          compare(core::name(name), {batch_idx, row + i, head + h, c}, load<double>(got, t.dtype, c), t.dtype,
                  expected[n], is_f64_ ? expected[n] : plain[n], noise[n]);
        }
      }
    }
  }

  void compare(std::string_view tensor, const Index& index, double got, core::DType dtype, double expected,
               double plain, double noise) {
    const auto n = static_cast<size_t>(std::ranges::find(kTensors, tensor) - kTensors.begin());
    is_there_[n] = true;
    of_[n].add(index, got, expected, round_to(dtype, plain), noise);
  }

  const AttentionArguments& p_;
  bool is_f64_;
  std::vector<Comparison> of_;
  std::array<bool, kTensors.size()> is_there_{};
  int64_t num_rows_ = 0;
};

void check_unused(const AttentionArguments& p, Checker& checker) {
  const auto keys = [&](int64_t b, int64_t begin, int64_t end) {
    checker.unused(Name::dk, b, begin, end, p.heads_kv, p.head_dim_qk);
    checker.unused(Name::dv, b, begin, end, p.heads_kv, p.head_dim_v);
  };
  const auto queries = [&](int64_t b, int64_t begin, int64_t end) {
    checker.unused(Name::dq, b, begin, end, p.heads_q, p.head_dim_qk);
  };
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = core::sequence(p, b);
    queries(b, s.row_q + s.len_q, s.row_q + s.slots_q);
    const int64_t first = s.row_kv - s.slot_kv;
    const int64_t slots = p.cu_seqlens_kv ? p.cu_seqlens_kv.at(0, b + 1) - p.cu_seqlens_kv.at(0, b) : p.seqlen_kv;
    keys(b, first, s.row_kv);
    keys(b, s.row_kv + s.len_kv, first + slots);
  }
  if (p.cu_seqlens_q) queries(0, p.cu_seqlens_q.at(0, p.batch), p.total_q);
  if (p.cu_seqlens_kv) keys(0, p.cu_seqlens_kv.at(0, p.batch), p.total_kv);
}

}  // namespace

CheckReport check_backward(const AttentionArguments& p, int64_t num_rows, uint64_t seed) {
  Checker checker(p);
  const int64_t heads = p.batch * p.heads_kv;
  int64_t rows = 0;
  for (int64_t n = 0; n < heads && (num_rows <= 0 || rows < num_rows); ++n) {
    const int64_t at = static_cast<int64_t>((static_cast<uint64_t>(n) + seed) % static_cast<uint64_t>(heads));
    const Sequence s = core::sequence(p, at / p.heads_kv);
    checker.head(s, at % p.heads_kv);
    rows += std::max<int64_t>(1, s.len_q * p.group());
  }
  check_unused(p, checker);
  for (const Gradient gradient : {Gradient::d_bias, Gradient::d_sink, Gradient::d_alibi_slopes}) {
    if (target(p, gradient).data == nullptr) continue;
    const ScoreAxes axes = score_axes(p, gradient);
    const int64_t total = axes.batch * axes.heads * axes.queries;
    const int64_t step = num_rows <= 0 ? 1 : std::max<int64_t>(1, total / num_rows);
    for (int64_t n = static_cast<int64_t>(seed % static_cast<uint64_t>(step)); n < total; n += step) {
      checker.score_row(gradient, n / axes.queries / axes.heads, n / axes.queries % axes.heads, n % axes.queries);
    }
  }
  return checker.report();
}

}  // namespace tessella::reference
