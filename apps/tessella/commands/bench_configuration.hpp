// One measurement of bench: a kernel over one problem, scaled to what this machine does in the time given.
#pragma once

#include <optional>
#include <string>

#include "commands/not_measured.hpp"
#include "commands/random_case.hpp"
#include "report/timing.hpp"

namespace tessella::cli {

struct BenchResult {
  std::string kernel;
  int64_t batch = 0;  // what was run: attention is linear in both, so a slow machine runs fewer
  int64_t heads_q = 0;
  int64_t heads_kv = 0;
  Timing timing;
  double seconds_per_head = 0;  // of one query head of one sequence
  int64_t check_seqlen = 0;     // of the problem whose result was checked
  tessella_check_report check = TESSELLA_CHECK_REPORT_INIT;
};

// Seconds above 0.
double parse_budget(const std::string& string);

// `kernel` "" lets the library choose. Empty where the library cannot compute it or fails, or memory would not do:
// other configurations may. Throws InputError for what holds of every configuration.
std::optional<BenchResult> bench_configuration(const RandomCase& problem, const std::string& kernel,
                                               const AttentionOptionValues& options, double budget, int64_t check_rows,
                                               NotMeasured& missing);

}  // namespace tessella::cli
