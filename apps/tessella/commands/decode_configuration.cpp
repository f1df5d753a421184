#include "commands/decode_configuration.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "device/read_rate.hpp"
#include "device/rotation.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"

namespace tessella::cli {
namespace {

// Of free memory: a GPU's is the process's own, a CPU's serves others too.
double usable(const Placement& placement) { return (placement.gpu ? 0.95 : 0.5) * available_memory(placement); }

// What the library takes for the option.
int threads_for(const Placement& placement, int32_t asked) {
  if (placement.gpu) return 0;
  const auto most = static_cast<int>(parse_integer("threads", library_info()["threads"].string()));
  return asked > 0 ? std::min<int>(asked, most) : most;
}

}  // namespace

std::unique_ptr<DecodeConfiguration> DecodeConfiguration::make(const DecodeCase& decode_case,
                                                               const AttentionOptionValues& options, double budget,
                                                               NotMeasured& missing) {
  const double needed = DecodeLayout(decode_case, options.placement()).total_bytes(),
               have = usable(options.placement());
  if (needed > have) {
    missing = {fmt::format("its caches take {} of memory, {} may be used", bytes_string(needed), bytes_string(have))};
    return nullptr;
  }
  return attempt(missing, [&] {
    return std::unique_ptr<DecodeConfiguration>(new DecodeConfiguration(decode_case, options, budget));
  });
}

DecodeConfiguration::DecodeConfiguration(const DecodeCase& decode_case, const AttentionOptionValues& options,
                                         double budget)
    : placement_(options.placement()),
      budget_(budget),
      calls_(decode_case, options),
      num_threads_(threads_for(placement_, calls_.at(0).options.num_threads)),
      read_seconds_(seconds_to_read(placement_, calls_.caches(), cache_bytes(), calls_.layout().cache_stride(),
                                    calls_.size(), num_threads_, budget)) {}

std::optional<DecodeResult> DecodeConfiguration::run(const std::string& kernel, int64_t check_rows,
                                                     NotMeasured& missing) {
  return attempt(missing, [&] { return std::optional(measure(kernel, check_rows)); });
}

DecodeResult DecodeConfiguration::measure(const std::string& kernel, int64_t check_rows) {
  calls_.choose_kernel(kernel);
  const PlanHandle plan = make_plan(calls_.at(0));
  tessella_workspace workspace = {};
  check(tessella_plan_workspace(plan.get(), &workspace.state_bytes, &workspace.scratch_bytes));
  const Memory state(placement_, workspace.state_bytes), scratch(placement_, workspace.scratch_bytes);
  workspace.state = state.data();
  workspace.scratch = scratch.data();
  check(tessella_plan_initialize(plan.get(), &workspace, nullptr));
  const auto run = [&](int64_t idx, void* stream) {
    check(tessella_plan_run(plan.get(), Tagged(calls_.at(idx)), &workspace, stream));
  };
  run(0, nullptr);
  DecodeResult result{tessella_plan_kernel(plan.get()), {}};
  result.check = calls_.check_rows(check_rows);
  if (result.check.passed) result.timing = measure_rotation(placement_, calls_.size(), run, budget_);
  return result;
}

}  // namespace tessella::cli
