// Sampled rows of caches that an append has written, and of copied pages.
//
// A quantised row is held to its own dtype: each element is the multiple of the row's scale that is nearest to the
// exact one, and a scale that was computed is that of the exact row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "core/cancel.hpp"
#include "operations/append/arguments.hpp"
#include "operations/append/new_rows.hpp"
#include "operations/append/quantized_rows.hpp"
#include "operations/copy_pages/arguments.hpp"
#include "portable/quantize.hpp"
#include "reference/append.hpp"
#include "reference/check.hpp"
#include "reference/copy_pages.hpp"
#include "reference/element.hpp"
#include "reference/sampled_row.hpp"

namespace tessella::reference {
namespace {

using core::AppendArguments;

CheckReport report(const char* tensor, const Comparison& comparison, int64_t rows) {
  return {.rows = rows,
          .max_error = comparison.max_error(),
          .plain_error = comparison.plain_error(),
          .tolerance = comparison.tolerance(),
          .passed = comparison.passed(),
          .worst_index = comparison.worst_index(),
          .worst_got = comparison.worst_got(),
          .worst_expected = comparison.worst_expected(),
          .tensor = tensor};
}

// Rows of one of k, v and q_out. Index: batch, new row of its sequence or packed tensor, head, column.
class RowsChecker {
 public:
  RowsChecker(const AppendArguments& a, const core::AppendedNames& names, const core::RowsShape& shape,
              const AppendArguments::Rows& rows)
      : a_(a),
        names_(names),
        shape_(shape),
        rows_(rows),
        is_quantized_(names.is_cache && core::is_quantized(a.cache.dtype)),
        expected_(static_cast<size_t>(shape.head_dim)),
        plain_(expected_.size()),
        got_(expected_.size()),
        comparison_(is_quantized_ ? 0 : 2) {}

  void row(const portable::NewRow& at, int64_t head) {
    appended_row(a_, names_, shape_, rows_, at, head, expected_.data());
    appended_row(a_, names_, shape_, rows_, at, head, plain_.data());
    const std::byte* got =
        names_.is_cache ? rows_.into.row(at.slot, at.row, head) : rows_.into.row(at.from_batch, at.from_row, head);
    if (is_quantized_) {
      quantized_row(at, head, got);
      return;
    }
    const bool is_f64 = a_.dtype() == core::DType::f64;
    for (int64_t c = 0; c < shape_.head_dim; ++c) {
      const double value = expected_[static_cast<size_t>(c)];
      const double plain = is_f64 ? value : round_to(a_.dtype(), plain_[static_cast<size_t>(c)]);
      comparison_.add({at.batch_idx, at.from_row, head, c}, load<double>(got, a_.dtype(), c), value, plain,
                      noise(at, head, c, value));
    }
  }

  CheckReport report(int64_t rows) const {
    const bool are_scales_wrong = comparison_.passed() && !scales_.passed();
    return reference::report(are_scales_wrong ? names_.scale : names_.into, are_scales_wrong ? scales_ : comparison_,
                             rows);
  }

 private:
  // Compares a quantized row: expected_ holds the exact values, plain_ the values to be stored.
  void quantized_row(const portable::NewRow& at, int64_t head, const std::byte* got) {
    const double scale = core::scale_of(a_, rows_, at, head);
    if (a_.scale_block != 0) computed_scale(at, head, scale);
    load_row(got, a_.cache.dtype, shape_.head_dim, got_.data());
    const portable::Element element = core::element(a_.cache.dtype);
    const double size = std::abs(scale), most = portable::largest(element) * size;
    const bool is_zero = size < portable::kLeastScale;
    const float divisor = portable::divisor_of(static_cast<float>(scale));
    for (int64_t c = 0; c < shape_.head_dim; ++c) {
      const auto idx = static_cast<size_t>(c);
      const double exact = expected_[idx];
      double value = is_zero ? 0 : std::clamp(exact, -most, most);
      // Divided by a scale that counts as zero, an infinity is no number either.
      const bool is_nan = std::isnan(exact) || (is_zero && std::isinf(exact));
      if (is_nan) value = a_.cache.dtype == core::DType::f8e4m3fn ? std::numeric_limits<double>::quiet_NaN() : 0;
      if (!std::isfinite(scale)) value = std::numeric_limits<double>::quiet_NaN();
      const double plain = scale * portable::number_of(portable::quantized(plain_[idx], divisor, element), element);
      comparison_.add({at.batch_idx, at.from_row, head, c}, scale * got_[idx], value, plain,
                      half_step(value / size) * size + noise(at, head, c, exact) + 0x1p-22 * std::abs(value));
    }
  }

  // Compares a computed scale with the exact row's, up to the rounding of the row's largest value.
  void computed_scale(const portable::NewRow& at, int64_t head, double got) {
    double most = 0, moved = 0;
    for (int64_t c = 0; c < shape_.head_dim; ++c) {
      const double exact = std::abs(expected_[static_cast<size_t>(c)]);
      most = std::isfinite(exact) && std::isfinite(most) ? std::max(most, exact)
                                                         : std::numeric_limits<double>::quiet_NaN();
      moved = std::max(moved, noise(at, head, c, exact));
    }
    const double largest = portable::largest(core::element(a_.cache.dtype));
    const double exact = most / largest, error = moved / largest + 0x1p-22 * exact;
    const bool is_zero = exact < portable::kLeastScale;
    const bool may_be_either = std::abs(exact - portable::kLeastScale) <= error && got == (is_zero ? exact : 1.0);
    const double expected = may_be_either ? got : is_zero ? 1.0 : exact;
    scales_.add({at.batch_idx, at.from_row, head, 0}, got, expected, expected, is_zero ? 0 : error);
  }

  // Half of what two neighbours at x differ by.
  double half_step(double x) const {
    if (a_.cache.dtype != core::DType::f8e4m3fn) return 0.5;
    return std::abs(x) < 0x1p-6 ? 0x1p-10 : std::ldexp(0x1p-4, std::ilogb(x));
  }

  // Two products and their sum, each rounded in the precision of the computation, and the result once more.
  double noise(const portable::NewRow& at, int64_t head, int64_t c, double value) const {
    if (!names_.is_rotated || c >= a_.rotary_dim) return 0;
    const double unit = unit_roundoff(a_.dtype() == core::DType::f64 ? core::DType::f64 : core::DType::f32);
    const std::byte* from = rows_.from.row(at.from_batch, at.from_row, head);
    const int64_t half = a_.rotary_dim / 2;
    const int64_t j = a_.rotary_interleaved ? c / 2 : c % half;
    const int64_t other = a_.rotary_interleaved ? c ^ 1 : c < half ? c + half : c - half;
    const auto size = [&](const std::byte* row, core::DType dtype, int64_t idx) {
      return std::abs(load<double>(row, dtype, idx));
    };
    const double terms = size(from, a_.dtype(), c) * size(a_.cos.row(0, at.position, 0), a_.rotary, j) +
                         size(from, a_.dtype(), other) * size(a_.sin.row(0, at.position, 0), a_.rotary, j);
    return std::isfinite(terms)
               ? 3 * unit * terms + unit_roundoff(a_.dtype()) * std::abs(value) + underflow_unit(a_.dtype())
               : 0;
  }

  const AppendArguments& a_;
  core::AppendedNames names_;
  core::RowsShape shape_;
  AppendArguments::Rows rows_;
  bool is_quantized_;
  std::vector<double> expected_;
  std::vector<float> plain_;
  std::vector<double> got_;
  Comparison comparison_;
  Comparison scales_{0};
};

}  // namespace

CheckReport check_append(const AppendArguments& a, int64_t num_rows, uint64_t seed) {
  const portable::NewRowTables tables = core::new_row_tables(a);
  std::optional<CheckReport> found;
  AppendArguments::appended_rows(
      a, [&](const core::AppendedNames& names, const core::RowsShape& shape, const AppendArguments::Rows& rows) {
        RowsChecker checker(a, names, shape, rows);
        const int64_t total = a.tokens() * shape.heads;
        const int64_t samples = num_rows <= 0 || num_rows > total ? total : num_rows;
        int64_t compared = 0;
        for (int64_t sample = 0; sample < samples; ++sample) {
          core::end_if_cancelled(a.cancel);
          const int64_t idx = sampled_row(sample, samples, total, seed);
          const portable::NewRow at = portable::new_row(tables, static_cast<int32_t>(idx / shape.heads));
          if (!at.is_new) continue;
          checker.row(at, idx % shape.heads);
          ++compared;
        }
        const CheckReport report = checker.report(compared);
        const int64_t all = compared + (found ? found->rows : 0);
        if (!found || (found->passed && !report.passed)) found = report;
        found->rows = all;
      });
  return *found;
}

CheckReport check_copy_pages(const core::CopyPagesArguments& a, int64_t num_rows, uint64_t seed) {
  Comparison comparison(0);
  int64_t compared = 0;
  for (const core::CopyPagesArguments::Pool& pool : a.given) {
    const auto bytes = core::bytes_of(a.dtype(), pool.head_dim);
    const int64_t total = a.num_pairs * pool.rows * pool.heads;
    const int64_t samples = num_rows <= 0 || num_rows > total ? total : num_rows;
    for (int64_t sample = 0; sample < samples; ++sample) {
      core::end_if_cancelled(a.cancel);
      const int64_t idx = sampled_row(sample, samples, total, seed);
      const int64_t head = idx % pool.heads, row = idx / pool.heads % pool.rows, pair = idx / pool.heads / pool.rows;
      const int64_t from = a.pairs.at(pair, 0), into = a.pairs.at(pair, 1);
      const auto is_page = [&](int64_t page) { return page >= 0 && page < a.num_pages; };
      if (!is_page(from) || !is_page(into)) continue;
      const std::byte* expected = pool.pages.row(from, row, head);
      const std::byte* got = pool.pages.row(into, row, head);
      for (int64_t c = 0; c < bytes; ++c) {
        const auto value = [c](const std::byte* at) { return static_cast<double>(at[c]); };
        comparison.add({into, row, head, c}, value(got), value(expected), value(expected), 0);
      }
      ++compared;
    }
  }
  return report("pools", comparison, compared);
}

}  // namespace tessella::reference
