#include "reference/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/cancel.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/attention.hpp"
#include "reference/element.hpp"
#include "reference/merge.hpp"
#include "reference/noise.hpp"
#include "reference/rest.hpp"
#include "reference/sampled_row.hpp"
#include "reference/scaled_rows.hpp"
#include "reference/score.hpp"

namespace tessella::reference {
namespace {

using core::AttentionArguments;
using core::Sequence;

// tanh amplifies the rounding of its argument differently from kernel to kernel.
double factor(const AttentionArguments& p) { return p.features.has(core::Feature::softcap) ? 3 : 2; }

CheckReport report(const Comparison& out, const Comparison& lse, const Comparison& amax, int64_t rows) {
  const Comparison& worse = !out.passed() ? out : !lse.passed() ? lse : !amax.passed() ? amax : out;
  return {.rows = rows,
          .max_error = worse.max_error(),
          .plain_error = worse.plain_error(),
          .tolerance = worse.tolerance(),
          .passed = worse.passed(),
          .worst_index = worse.worst_index(),
          .worst_got = worse.worst_got(),
          .worst_expected = worse.worst_expected(),
          .tensor = &worse == &lse    ? "lse"
                    : &worse == &amax ? "amax"
                                      : "out"};
}

// Finds elements that may be NaN although the reference is not (docs/numerics.md), from the inputs that are not finite.
// It runs only when a NaN is found, so calls of finite values pay nothing.
class Nans {
 public:
  Nans(const AttentionArguments& p, core::DeviceType computed_on)
      : p_(p), splits_operands_(p.dtype() == core::DType::f32 && computed_on == core::DeviceType::cuda) {}

  // Column c of out of every query of the sequence. Kernels multiply all P of a tile by v, and 0 * NaN and 0 * infinity
  // are NaN: so it is where any query of these heads sees a key whose v is not finite there.
  bool reach_column(const Sequence& s, int64_t kv_head, int64_t c) {
    if (batch_idx_ != s.batch_idx) {
      batch_idx_ = s.batch_idx;
      columns_.assign(static_cast<size_t>(p_.heads_kv), {});
    }
    std::vector<bool>& columns = columns_[static_cast<size_t>(kv_head)];
    if (columns.empty()) columns = reached_columns(s, kv_head);
    return columns[static_cast<size_t>(c)];
  }

  // All of row i: GPUs split fp32 operands in two, of which an infinity's second is inf - inf.
  bool reach_row(const Sequence& s, int64_t head, int64_t i) const {
    if (!splits_operands_) return false;
    std::vector<double> row(static_cast<size_t>(p_.head_dim_qk));
    const auto has_infinity = [&] { return std::ranges::any_of(row, [](double value) { return std::isinf(value); }); };
    load_q(p_, s, i, head, row.data());
    if (has_infinity()) return true;
    for (int64_t j = 0; j < s.len_kv; ++j) {
      if (!core::visible(s, head, i, j)) continue;
      load_k(p_, s, j, head / p_.group(), row.data());
      if (has_infinity()) return true;
    }
    return false;
  }

 private:
  std::vector<bool> reached_columns(const Sequence& s, int64_t kv_head) const {
    std::vector<bool> reached(static_cast<size_t>(p_.head_dim_v));
    std::vector<double> v(reached.size());
    for (int64_t j = 0; j < s.len_kv; ++j) {
      load_v(p_, s, j, kv_head, v.data());
      const auto tells = [&](size_t c) { return !reached[c] && !std::isfinite(v[c]); };
      bool is_seen = false;
      for (size_t c = 0; c < v.size(); ++c) {
        if (!tells(c)) continue;
        is_seen = is_seen || core::seen_by_any_query(p_, s, kv_head, j);
        if (!is_seen) break;
        reached[c] = true;
      }
    }
    return reached;
  }

  const AttentionArguments& p_;
  bool splits_operands_;
  int64_t batch_idx_ = -1;                  // of columns_
  std::vector<std::vector<bool>> columns_;  // by KV head; empty: not found out yet
};

// amax from results: each entry's own.
class Amax {
 public:
  explicit Amax(const AttentionArguments& p) : p_(p), amax_(p.tensors[core::Name::amax]) {}

  // The results of a row. may_be_nan: so is one of them in out.
  void row(const Sequence& s, int64_t head, int64_t i, const std::vector<double>& expected,
           const std::vector<float>& plain, const std::vector<double>& noise, bool may_be_nan) {
    if (amax_.data == nullptr) return;
    const int64_t row_idx = s.row_q + i;
    Entry& entry = entries_[p_.scale_of_q(amax_, s.batch_idx, row_idx, head)];
    entry.index = {s.batch_idx, p_.scale_block == 0 ? 0 : row_idx / p_.scale_block, head, -2};
    entry.may_be_nan = entry.may_be_nan || may_be_nan;
    for (size_t c = 0; c < expected.size(); ++c) {
      const double size = std::abs(expected[c]);
      if (std::isnan(size) || size > entry.expected) entry.expected = size;
      // Plain computation of doubles is the reference itself.
      const double of_plain =
          p_.dtype() == core::DType::f64 ? 0 : std::abs(static_cast<double>(plain[c]) - expected[c]);
      if (std::isfinite(of_plain)) entry.plain_error = std::max(entry.plain_error, of_plain);
      entry.noise = std::max(entry.noise, noise[c]);
    }
  }

  // is_whole: row() has had all rows; else an entry may be larger than what it has had.
  Comparison compare(double factor, bool is_whole) const {
    Comparison comparison(factor);
    if (is_whole) empty_entries(comparison);
    for (const auto& [at, entry] : entries_) {
      const double got = load<double>(at, amax_.dtype, 0);
      if (std::isnan(got) && !std::isnan(entry.expected) && entry.may_be_nan) continue;
      const double expected = !is_whole && got > entry.expected ? got : entry.expected;
      comparison.add(entry.index, got, expected, expected + entry.plain_error,
                     entry.noise + kUnit * expected + underflow_unit(core::DType::f32));
    }
    return comparison;
  }

 private:
  // Those that cover no row.
  void empty_entries(Comparison& comparison) const {
    if (amax_.data == nullptr) return;
    const auto [batch, blocks] = p_.scale_axes(p_.axes_q(), p_.features.has(core::Feature::packed_q));
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t head = 0; head < p_.heads_q; ++head) {
          const std::byte* at = amax_.row(b, block, head);
          if (entries_.contains(at)) continue;
          comparison.add({b, block, head, -2}, load<double>(at, amax_.dtype, 0), 0, 0, 0);
        }
      }
    }
  }

  static constexpr double kUnit = unit_roundoff(core::DType::f32);
  struct Entry {
    Index index{};
    double expected = 0, plain_error = 0, noise = 0;
    bool may_be_nan = false;
  };
  const AttentionArguments& p_;
  const core::Operand& amax_;
  std::map<const std::byte*, Entry> entries_;
};

class Checker {
 public:
  Checker(const AttentionArguments& p, core::DeviceType computed_on)
      : p_(p),
        nans_(p, computed_on),
        amax_(p),
        out_(factor(p)),
        lse_(factor(p)),
        scratch_(static_cast<size_t>(row_scratch(p))),
        plain_scratch_(static_cast<size_t>(row_scratch(p))),
        expected_(static_cast<size_t>(p.head_dim_v)),
        plain_(static_cast<size_t>(p.head_dim_v)) {}

  // Row i of a sequence, which may lie past the valid rows: then the output is 0.
  void row(const Sequence& s, int64_t head, int64_t i) {
    core::end_if_cancelled(p_.cancel);
    double lse = kHidden<double>;
    double plain_lse = kHidden<double>;
    std::fill(expected_.begin(), expected_.end(), 0.0);
    std::fill(plain_.begin(), plain_.end(), 0.0F);
    noise_.result.assign(expected_.size(), 0);
    noise_.out.assign(expected_.size(), 0);
    if (i < s.len_q) {
      const RowSoftmax<double> softmax = attention_row(p_, s, head, i, scratch_.data(), expected_.data());
      lse = softmax.lse;
      noise_ = row_noise(p_, s, head, i, softmax, expected_.data());
      if (p_.dtype() != core::DType::f64) {
        plain_lse = plain_row(p_, s, head, i, plain_scratch_.data(), plain_.data());
      }
    }
    std::optional<bool> reached;
    const auto row_may_be_nan = [&] {
      if (!reached) reached = i < s.len_q && nans_.reach_row(s, head, i);
      return *reached;
    };
    const auto may_be_nan = [&](int64_t c) {
      return i < s.len_q && (nans_.reach_column(s, head / p_.group(), c) || row_may_be_nan());
    };
    const std::byte* out = p_.out().row(s.batch_idx, s.row_q + i, head);
    const bool is_of_sequence = s.batch_idx < p_.batch;
    const OutScale of = is_of_sequence ? out_scale(p_, s, i, head) : OutScale{};
    const auto scale = static_cast<double>(of.scale);
    bool any_is_nan = false;
    for (int64_t c = 0; c < p_.head_dim_v; ++c) {
      const auto at = static_cast<size_t>(c);
      const double got = load<double>(out, p_.out_dtype(), c) * scale;
      const double expected = within_out(p_, of, expected_[at]) * scale;
      if (std::isnan(got) && !std::isnan(expected) && may_be_nan(c)) {
        any_is_nan = true;
        continue;
      }
      // Plain computation of doubles is the reference itself.
      const double plain =
          p_.dtype() == core::DType::f64 ? expected : round_to(p_.out_dtype(), within_out(p_, of, plain_[at])) * scale;
      out_.add({s.batch_idx, i, head, c}, got, expected, plain, noise_.out[at]);
    }
    if (is_of_sequence) amax_.row(s, head, i, expected_, plain_, noise_.result, any_is_nan);
    ++rows_;
    if (p_.lse().data == nullptr) return;
    const double got = load<double>(p_.lse().row(s.batch_idx, s.row_q + i, head), p_.lse().dtype, 0);
    if (std::isnan(got) && !std::isnan(lse) && row_may_be_nan()) return;
    lse_.add({s.batch_idx, i, head, -1}, got, lse, p_.dtype() == core::DType::f64 ? lse : plain_lse, noise_.lse);
  }

  // is_whole: row() has had all rows.
  CheckReport report(bool is_whole) const {
    return reference::report(out_, lse_, amax_.compare(factor(p_), is_whole), rows_);
  }

 private:
  const AttentionArguments& p_;
  Nans nans_;
  Amax amax_;
  Comparison out_;
  Comparison lse_;
  int64_t rows_ = 0;
  std::vector<double> scratch_;
  std::vector<float> plain_scratch_;
  std::vector<double> expected_;
  std::vector<float> plain_;
  RowNoise noise_;
};

// Whether a state that counts is not finite there: its weight may be 0 in fp32, and 0 * infinity is NaN.
bool any_is_not_finite(const core::MergeArguments& a, int64_t batch_idx, int64_t row, int64_t head, int64_t c) {
  return std::any_of(a.given.begin(), a.given.end(), [&](const core::MergeArguments::State& state) {
    return !std::isfinite(load<double>(state.out.row(batch_idx, row, head), a.dtype(), c)) &&
           load<double>(state.lse.row(batch_idx, row, head), state.lse.dtype, 0) != kHidden<double>;
  });
}

}  // namespace

CheckReport check_forward(const AttentionArguments& p, int64_t num_rows, uint64_t seed, core::DeviceType computed_on) {
  const auto sequence = [&](int64_t b) { return b < p.batch ? core::sequence(p, b) : rest(p); };
  int64_t total = 0;
  for (int64_t b = 0; b <= p.batch; ++b) total += sequence(b).slots_q * p.heads_q;
  const int64_t samples = num_rows <= 0 || num_rows > total ? total : num_rows;

  Checker checker(p, computed_on);
  int64_t begin = 0;  // first row, counted over all sequences, of the sequence at hand
  int64_t sample = 0;
  for (int64_t b = 0; b <= p.batch; ++b) {
    const Sequence s = sequence(b);
    for (; sample < samples; ++sample) {
      const int64_t row = sampled_row(sample, samples, total, seed) - begin;
      if (row >= s.slots_q * p.heads_q) break;
      checker.row(s, row % p.heads_q, row / p.heads_q);
    }
    begin += s.slots_q * p.heads_q;
  }
  return checker.report(samples == total);
}

CheckReport check_merge(const core::MergeArguments& a, int64_t num_rows, uint64_t seed) {
  constexpr double kFactor = 2;
  Comparison out_comparison(kFactor);
  Comparison lse_comparison(kFactor);
  const bool is_f64 = a.dtype() == core::DType::f64;
  std::vector<double> weights(a.given.size()), out(static_cast<size_t>(a.head_dim));
  std::vector<float> plain_weights(weights.size()), plain_out(out.size());
  const int64_t total = a.batch * a.seqlen * a.heads;
  const int64_t samples = num_rows <= 0 || num_rows > total ? total : num_rows;
  for (int64_t sample = 0; sample < samples; ++sample) {
    core::end_if_cancelled(a.cancel);
    const int64_t idx = sampled_row(sample, samples, total, seed);
    const int64_t head = idx % a.heads;
    const int64_t row = idx / a.heads % a.seqlen;
    const int64_t batch_idx = idx / a.heads / a.seqlen;
    const double lse = merge_row(a, batch_idx, row, head, weights.data(), out.data());
    const MergeNoise noise = merge_noise(a, batch_idx, row, head, weights.data(), out.data(), lse);
    // Plain computation of doubles is the reference itself.
    const double plain_lse =
        is_f64 ? lse : plain_merge_row(a, batch_idx, row, head, plain_weights.data(), plain_out.data());
    const std::byte* got = a.result.out.row(batch_idx, row, head);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const auto at = static_cast<size_t>(c);
      const double value = load<double>(got, a.out.dtype, c);
      if (std::isnan(value) && !std::isnan(out[at]) && any_is_not_finite(a, batch_idx, row, head, c)) continue;
      const double plain = is_f64 ? out[at] : round_to(a.out.dtype, plain_out[at]);
      out_comparison.add({batch_idx, row, head, c}, value, out[at], plain, noise.out[at]);
    }
    if (a.result.lse.data == nullptr) continue;
    lse_comparison.add({batch_idx, row, head, -1},
                       load<double>(a.result.lse.row(batch_idx, row, head), a.result.lse.dtype, 0), lse, plain_lse,
                       noise.lse);
  }
  return report(out_comparison, lse_comparison, Comparison(kFactor), samples);
}

}  // namespace tessella::reference
