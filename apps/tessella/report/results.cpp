#include "report/results.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "files/printable.hpp"
#include "options/number_string.hpp"
#include "report/output.hpp"

namespace tessella::cli {
namespace {

struct OutputSummary {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  int64_t num_finite = 0;
  int64_t num_nan = 0;
  int64_t num_infinite = 0;
};

OutputSummary summarize(const Array& out) {
  OutputSummary summary;
  const int64_t size = num_elements(out.tensor);
  for (int64_t i = 0; i < size; ++i) {
    const double value = load_element(out.tensor.data, out.tensor.dtype, i);
    summary.num_nan += std::isnan(value);
    summary.num_infinite += std::isinf(value);
    if (!std::isfinite(value)) continue;
    ++summary.num_finite;
    summary.min = std::min(summary.min, value);
    summary.max = std::max(summary.max, value);
    summary.mean += value;
  }
  if (summary.num_finite > 0) summary.mean /= static_cast<double>(summary.num_finite);
  return summary;
}

// "min -1, max 1, mean 0, 3 NaN", of the finite elements; "all NaN".
std::string summary_string(const Array& array) {
  const OutputSummary summary = summarize(array);
  const int64_t num_all = summary.num_finite + summary.num_nan + summary.num_infinite;
  if (num_all == 0) return "no elements";
  if (summary.num_nan == num_all) return "all NaN";
  if (summary.num_infinite == num_all) return "all infinite";
  std::string string = "nothing finite";
  if (summary.num_finite > 0)
    string = fmt::format("min {:.4g}, max {:.4g}, mean {:.4g}", summary.min, summary.max, summary.mean);
  if (summary.num_nan > 0) string += fmt::format(", {} NaN", summary.num_nan);
  if (summary.num_infinite > 0) string += fmt::format(", {} infinite", summary.num_infinite);
  return string;
}

}  // namespace

Json describe_array(const Array& array) {
  return {{"shape", std::span<const int64_t>(array.tensor.shape, static_cast<size_t>(array.tensor.ndim))},
          {"dtype", dtype_name(array.tensor.dtype)},
          {"from", array.source}};
}

Json describe_result(const Array& array, const std::string& file) {
  Json described = describe_array(array);
  described["from"] = file.empty() ? Json() : Json(file);
  return described;
}

void print_result(const Array& array, const std::string& file) {
  put("{:<7} {} {}  {}{}\n", array.name, shape_string(array.tensor), dtype_name(array.tensor.dtype),
      summary_string(array), file.empty() ? "" : "  -> " + printable(file));
}

Json describe_check(const tessella_check_report& report) {
  return {{"rows", report.rows},
          {"max_error", report.max_error},
          {"plain_error", report.plain_error},
          {"tolerance", report.tolerance},
          {"passed", report.passed == 1},
          {"worst_index", std::span<const int64_t>(report.worst_index)},
          {"worst_got", report.worst_got},
          {"worst_expected", report.worst_expected}};
}

void print_check(const tessella_check_report& report, const char* of) {
  put("check   {}: {} rows against the float64 reference, max error {} (plain {} {}, allowed {})\n",
      report.passed ? "passed" : "FAILED", report.rows, error_string(report.max_error), of,
      error_string(report.plain_error), error_string(report.tolerance));
  if (!report.passed) {
    const int64_t* at = report.worst_index;
    put("        worst at batch {}, row {}, head {}, {}: got {}, expected {}\n", at[0], at[1], at[2],
        at[3] < 0 ? "lse" : fmt::format("dim {}", at[3]), report.worst_got, report.worst_expected);
  }
}

void print_backward_check(const tessella_check_report& report) {
  put("check   {}: gradients of {} rows against the float64 reference, max error of {} {} (plain fp32 {}, allowed "
      "{})\n",
      report.passed ? "passed" : "FAILED", report.rows, report.worst_tensor, error_string(report.max_error),
      error_string(report.plain_error), error_string(report.tolerance));
  if (report.passed) return;
  const int64_t* at = report.worst_index;
  put("        worst at {}[{}, {}, {}, {}]: got {}, expected {}\n", report.worst_tensor, at[0], at[1], at[2], at[3],
      report.worst_got, report.worst_expected);
}

}  // namespace tessella::cli
