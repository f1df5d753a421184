// Sampled rows that quantize or dequantize has written, and the scales, means and shifts of the LSE that they have.
//
// What is stored is held to its own dtype: each element is the multiple of the row's scale that is nearest to the exact
// number, up to the roundings of fp32 on the way to it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/cancel.hpp"
#include "core/element.hpp"
#include "operations/quantize/arguments.hpp"
#include "operations/quantize/quantize_rows.hpp"
#include "portable/hadamard.hpp"
#include "portable/quantize.hpp"
#include "portable/rotary.hpp"
#include "reference/check.hpp"
#include "reference/element.hpp"
#include "reference/quantize.hpp"
#include "reference/sampled_row.hpp"

namespace tessella::reference {
namespace {

using core::QuantizeArguments;
using portable::SequenceRow;

constexpr double kUnit = 0x1p-24;  // of fp32
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A row and how far fp32 may be from it.
struct NoisyRow {
  std::vector<double> value, noise;
  explicit NoisyRow(int64_t count) : value(static_cast<size_t>(count)), noise(value.size()) {}
};

double finite(double x) { return std::isfinite(x) ? x : 0; }

class QuantizeChecker {
 public:
  explicit QuantizeChecker(const QuantizeArguments& a)
      : a_(a),
        tables_(core::sequence_tables(a)),
        row_(a.head_dim),
        other_(a.head_dim),
        scratch_(static_cast<size_t>(a.head_dim)),
        element_(core::element(a.quantized().dtype)) {}

  void add(int64_t tensor_batch, int64_t row, int64_t head) {
    const SequenceRow at = row_at(tensor_batch, row);
    if (!at.exists) return;
    ++rows_;
    if (a_.operation == core::Operation::dequantize) return numbers(at, head);
    if (a_.computes_scales) scale(at, head);
    if (a_.mean.data != nullptr) mean(at, head);
    if (a_.has_shift) shift(at, head);
    elements(at, head);
  }

  CheckReport report() const {
    for (const auto& [name, comparison] :
         {std::pair{"scale", &scales_}, std::pair{"mean", &means_}, std::pair{"lse_shift", &shifts_}}) {
      if (out_.passed() && !comparison->passed()) return report(name, *comparison);
    }
    return report("out", out_);
  }

 private:
  CheckReport report(const char* tensor, const Comparison& comparison) const {
    return {.rows = rows_,
            .max_error = comparison.max_error(),
            .plain_error = comparison.plain_error(),
            .tolerance = comparison.tolerance(),
            .passed = comparison.passed(),
            .worst_index = comparison.worst_index(),
            .worst_got = comparison.worst_got(),
            .worst_expected = comparison.worst_expected(),
            .tensor = tensor};
  }

  SequenceRow row_at(int64_t tensor_batch, int64_t row) const {
    return portable::sequence_row(tables_, static_cast<int32_t>(tensor_batch), static_cast<int32_t>(row));
  }

  // Two products and their sum are rounded.
  void rotated(const SequenceRow& at, int64_t head, NoisyRow& row) const {
    rotated_row(a_, at, head, row.value.data());
    std::fill(row.noise.begin(), row.noise.end(), 0.0);
    const std::byte* from = a_.from.row(at.tensor_batch, at.row, head);
    const auto size = [&](const std::byte* data, core::DType dtype, int64_t idx) {
      return std::abs(load<double>(data, dtype, idx));
    };
    for (int64_t j = 0; j < a_.rotary_dim / 2; ++j) {
      const int64_t first = portable::first_column(j, a_.rotary_interleaved);
      const int64_t second = portable::second_column(j, a_.rotary_dim, a_.rotary_interleaved);
      const double x = size(from, a_.from.dtype, first), y = size(from, a_.from.dtype, second);
      const double cos = size(a_.cos.row(0, at.position, 0), a_.rotary, j);
      const double sin = size(a_.sin.row(0, at.position, 0), a_.rotary, j);
      row.noise[static_cast<size_t>(first)] = finite(3 * kUnit * (x * cos + y * sin));
      row.noise[static_cast<size_t>(second)] = finite(3 * kUnit * (y * cos + x * sin));
    }
  }

  // Each output of the matrix is a sum of as many numbers as a block has, in levels, and a product.
  void add_matrix_noise(NoisyRow& row) const {
    const int64_t block = portable::hadamard_block(a_.head_dim);
    const double levels = std::log2(static_cast<double>(block)) + 2;
    for (int64_t first = 0; first < a_.head_dim; first += block) {
      double sum = 0, noise = 0;
      for (int64_t c = first; c < first + block; ++c) {
        sum += std::abs(finite(row.value[static_cast<size_t>(c)]));
        noise += row.noise[static_cast<size_t>(c)];
      }
      const double all = (noise + levels * kUnit * sum) / std::sqrt(static_cast<double>(block));
      std::fill_n(row.noise.begin() + first, block, all);
    }
  }

  // A row as it is divided by its scale.
  void prepared(const SequenceRow& at, int64_t head, NoisyRow& row) {
    rotated(at, head, row);
    if (a_.mean.data != nullptr) {
      const auto* mean = reinterpret_cast<const float*>(a_.mean.row(at.batch_idx, 0, head));
      for (size_t c = 0; c < row.value.size(); ++c) {
        row.value[c] -= mean[c];
        row.noise[c] += finite(kUnit * std::abs(row.value[c]));
      }
    }
    if (!a_.hadamard) return;
    add_matrix_noise(row);
    spread_row(a_, row.value.data(), scratch_.data());
  }

  void elements(const SequenceRow& at, int64_t head) {
    prepared(at, head, row_);
    const float* given = a_.scale_of(at.batch_idx, at.row, head);
    const double scale = given == nullptr ? 1 : *given;
    const double size = std::abs(scale), most = portable::largest(element_) * size;
    const bool is_zero = size < portable::kLeastScale;
    for (int64_t c = 0; c < a_.head_dim; ++c) {
      const double exact = row_.value[static_cast<size_t>(c)];
      double value = is_zero ? 0 : std::clamp(exact, -most, most);
      // Divided by a scale that counts as zero, an infinity is no number either.
      if (std::isnan(exact) || (is_zero && std::isinf(exact)) || !std::isfinite(scale)) value = kNan;
      const double got = scale * portable::number_of(*element_at(a_, at, head, c), element_);
      out_.add({at.batch_idx, at.row, head, c}, got, value, value,
               half_step(value / size) * size + row_.noise[static_cast<size_t>(c)] + 0x1p-22 * std::abs(value));
    }
  }

  // Half of what two neighbours at x differ by.
  double half_step(double x) const {
    if (element_ == portable::Element::e4m3) return std::abs(x) < 0x1p-6 ? 0x1p-10 : std::ldexp(0x1p-4, std::ilogb(x));
    return std::abs(x) < 0x1p-14 ? 0x1p-17 : std::ldexp(0x1p-3, std::ilogb(x));
  }

  // The scale of a row against that of all rows that have it.
  void scale(const SequenceRow& at, int64_t head) {
    const float* mine = a_.scale_of(at.batch_idx, at.row, head);
    if (!seen_.insert(mine).second) return;
    double most = 0, moved = 0;
    for (int64_t b = 0; b < a_.tensor_batch(); ++b) {
      for (int64_t row = 0; row < a_.total; ++row) {
        const SequenceRow other = row_at(b, row);
        if (!other.exists) continue;
        for (int64_t h = 0; h < a_.heads; ++h) {
          if (a_.scale_of(other.batch_idx, other.row, h) != mine) continue;
          prepared(other, h, other_);
          for (size_t c = 0; c < other_.value.size(); ++c) {
            const double size = std::abs(other_.value[c]);
            most = std::isfinite(size) && std::isfinite(most) ? std::max(most, size) : kNan;
            moved = std::max(moved, other_.noise[c]);
          }
        }
      }
    }
    const double largest = portable::largest(element_), exact = most / largest;
    const double error = moved / largest + 0x1p-22 * exact;
    const bool is_zero = exact < portable::kLeastScale;
    const bool may_be_either = std::abs(exact - portable::kLeastScale) <= error && *mine == (is_zero ? exact : 1.0);
    const double expected = may_be_either ? *mine : is_zero ? 1.0 : exact;
    scales_.add({at.batch_idx, at.row, head, 0}, *mine, expected, expected, is_zero ? 0 : error);
  }

  void mean(const SequenceRow& at, int64_t head) {
    const auto* mine = reinterpret_cast<const float*>(a_.mean.row(at.batch_idx, 0, head));
    if (!seen_.insert(mine).second) return;
    const portable::SequenceSpan span = portable::span_of(tables_, at.batch_idx);
    std::vector<double> sum(row_.value.size()), size(sum.size()), noise(sum.size());
    for (int32_t row = span.begin; row < span.end; ++row) {
      rotated(row_at(span.tensor_batch, row), head, other_);
      for (size_t c = 0; c < sum.size(); ++c) {
        sum[c] += other_.value[c];
        size[c] += std::abs(finite(other_.value[c]));
        noise[c] += other_.noise[c];
      }
    }
    const double rows = span.end - span.begin;
    const double roundings = portable::kMeanRows + rows / portable::kMeanRows + 3;
    for (size_t c = 0; c < sum.size(); ++c) {
      means_.add({at.batch_idx, 0, head, static_cast<int64_t>(c)}, mine[c], sum[c] / rows, sum[c] / rows,
                 (roundings * kUnit * size[c] + noise[c]) / rows + 0x1p-126);
    }
  }

  void shift(const SequenceRow& at, int64_t head) {
    rotated(at, head, row_);
    const int64_t k_head = head / (a_.heads / a_.mean_heads);
    const auto* mean = reinterpret_cast<const float*>(a_.k_mean.row(at.batch_idx, 0, k_head));
    double sum = 0, noise = 0;
    const double roundings = std::log2(static_cast<double>(a_.head_dim)) + 3;
    for (size_t c = 0; c < row_.value.size(); ++c) {
      const double term = row_.value[c] * mean[c];
      sum += term;
      noise += finite(roundings * kUnit * std::abs(term)) + row_.noise[c] * std::abs(finite(mean[c]));
    }
    const double got = *reinterpret_cast<const float*>(a_.lse_shift.row(at.tensor_batch, at.row, head));
    shifts_.add({at.batch_idx, at.row, head, -1}, got, sum, sum, noise + 0x1p-120);
  }

  // A row that dequantize has written.
  void numbers(const SequenceRow& at, int64_t head) {
    const float* given = a_.scale_of(at.batch_idx, at.row, head);
    const double scale = given == nullptr ? 1 : *given;
    for (int64_t c = 0; c < a_.head_dim; ++c) {
      row_.value[static_cast<size_t>(c)] = scale * portable::number_of(*element_at(a_, at, head, c), element_);
      row_.noise[static_cast<size_t>(c)] = finite(kUnit * std::abs(row_.value[static_cast<size_t>(c)]));
    }
    if (a_.hadamard) add_matrix_noise(row_);
    dequantized_row(a_, at, head, row_.value.data(), scratch_.data());
    const std::byte* got = a_.into.row(at.tensor_batch, at.row, head);
    for (int64_t c = 0; c < a_.head_dim; ++c) {
      const double value = row_.value[static_cast<size_t>(c)];
      const double unit = 2 * unit_roundoff(a_.into.dtype);  // of 16 bits half a step is twice that
      out_.add({at.batch_idx, at.row, head, c}, load<double>(got, a_.into.dtype, c), value, value,
               row_.noise[static_cast<size_t>(c)] + finite((unit + 2 * kUnit) * std::abs(value)) +
                   underflow_unit(a_.into.dtype));
    }
  }

  const QuantizeArguments& a_;
  portable::SequenceTables tables_;
  NoisyRow row_, other_;
  std::vector<double> scratch_;
  portable::Element element_;
  std::set<const float*> seen_;  // scales and means that were compared
  int64_t rows_ = 0;
  Comparison out_{0}, scales_{0}, means_{0}, shifts_{0};
};

}  // namespace

CheckReport check_quantize(const QuantizeArguments& a, int64_t num_rows, uint64_t seed) {
  QuantizeChecker checker(a);
  const int64_t total = a.tensor_batch() * a.total * a.heads;
  const int64_t samples = num_rows <= 0 || num_rows > total ? total : num_rows;
  for (int64_t sample = 0; sample < samples; ++sample) {
    core::end_if_cancelled(a.cancel);
    const int64_t idx = sampled_row(sample, samples, total, seed), token = idx / a.heads;
    checker.add(token / a.total, token % a.total, idx % a.heads);
  }
  return checker.report();
}

}  // namespace tessella::reference
