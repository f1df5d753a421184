// Prints the tables of docs/numerics.md: largest error against double of every kernel that runs here, by dtype and
// length, beside the error of the plain computation on the same rows.
//
//   numerics > table.md

#include <cstdio>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/kernels.hpp"
#include "cases/tagged.hpp"

namespace {

using tessella::tests::Call;
using tessella::tests::Case;
using tessella::tests::Tagged;

constexpr int64_t kRows = 64;  // sampled of each output
constexpr int64_t kLongestLadder = 2048;

std::string cell(const Case& c, std::string& plain) {
  Call call(c);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (call.run() != TESSELLA_OK) return "–";
  if (tessella_check(Tagged(call.args(), call.options()), kRows, 1, &report) != TESSELLA_OK) return "–";
  char string[64];
  std::snprintf(string, sizeof string, "%.1e", report.plain_error);
  plain = string;
  std::snprintf(string, sizeof string, "%.1e%s", report.max_error, report.passed != 0 ? "" : " !");
  return string;
}

void print_row(const std::string& name, const std::vector<std::string>& cells) {
  std::printf("| %s |", name.c_str());
  for (const std::string& string : cells) std::printf(" %s |", string.c_str());
  std::printf("\n");
}

}  // namespace

int main() {
  const std::vector<int64_t> lengths = {128, 512, 2048, 8192};
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    std::vector<std::string> titles, rules;
    for (const int64_t length : lengths) {
      titles.push_back(std::to_string(length));
      rules.push_back("---");
    }
    std::printf("\n");
    print_row(dtype, titles);
    print_row("---", rules);
    std::vector<std::string> plain(lengths.size());
    for (const auto& kernel : tessella::tests::kernels_of("forward")) {
      if (!kernel.unavailable.empty() || !kernel.computes(dtype)) continue;
      std::vector<std::string> cells;
      for (size_t at = 0; at < lengths.size(); ++at) {
        const bool reference = kernel.name.rfind("reference.", 0) == 0;
        if (reference && lengths[at] > kLongestLadder) {
          cells.push_back("");
          continue;
        }
        cells.push_back(cell({.kernel = kernel.name,
                              .dtype = dtype,
                              .seqlen_q = lengths[at],
                              .seqlen_kv = lengths[at],
                              .head_dim_qk = 64,
                              .head_dim_v = 64,
                              .plan = true,
                              .seed = 1},
                             plain[at]));
      }
      print_row(kernel.name, cells);
    }
    print_row("plain computation", plain);
  }
  return 0;
}
