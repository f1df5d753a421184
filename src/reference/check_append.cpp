// Sampled rows of caches that an append has written, and of copied pages.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "core/cancel.hpp"
#include "core/new_rows.hpp"
#include "reference/append.hpp"
#include "reference/check.hpp"
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
        expected_(static_cast<size_t>(shape.head_dim)),
        plain_(expected_.size()) {}

  void row(const portable::NewRow& at, int64_t head) {
    appended_row(a_, names_, shape_, rows_, at, head, expected_.data());
    appended_row(a_, names_, shape_, rows_, at, head, plain_.data());
    const std::byte* got =
        names_.is_cache ? rows_.into.row(at.slot, at.row, head) : rows_.into.row(at.from_batch, at.from_row, head);
    const bool is_f64 = a_.dtype() == core::DType::f64;
    for (int64_t c = 0; c < shape_.head_dim; ++c) {
      const double value = expected_[static_cast<size_t>(c)];
      const double plain = is_f64 ? value : round_to(a_.dtype(), plain_[static_cast<size_t>(c)]);
      comparison_.add({at.batch_idx, at.from_row, head, c}, load<double>(got, a_.dtype(), c), value, plain,
                      noise(at, head, c, value));
    }
  }

  CheckReport report(int64_t rows) const { return reference::report(names_.into, comparison_, rows); }

 private:
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
  std::vector<double> expected_;
  std::vector<float> plain_;
  Comparison comparison_{2};
};

}  // namespace

CheckReport check_append(const AppendArguments& a, int64_t num_rows, uint64_t seed) {
  const portable::NewRowTables tables = core::new_row_tables(a);
  std::optional<CheckReport> found;
  core::appended_rows(
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
