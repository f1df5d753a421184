#include "commands/decode_configuration.hpp"

#include <fmt/core.h>

#include "device/planned_call.hpp"
#include "device/read_rate.hpp"
#include "device/rotation.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"

namespace tessella::cli {

std::unique_ptr<DecodeConfiguration> DecodeConfiguration::make(const DecodeCase& decode_case,
                                                               const AttentionOptionValues& options, double budget,
                                                               NotMeasured& missing) {
  const double needed = DecodeLayout(decode_case, options.placement()).total_bytes(),
               have = usable_memory(options.placement());
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
      num_threads_(placement_.gpu ? 0 : cpu_threads(calls_.at(0).options.num_threads)),
      read_seconds_(seconds_to_read(placement_, calls_.caches(), cache_bytes(), calls_.layout().cache_stride(),
                                    calls_.size(), num_threads_, budget)) {}

std::optional<DecodeResult> DecodeConfiguration::run(const std::string& kernel, int64_t check_rows,
                                                     NotMeasured& missing) {
  return attempt(missing, [&] { return std::optional(measure(kernel, check_rows)); });
}

DecodeResult DecodeConfiguration::measure(const std::string& kernel, int64_t check_rows) {
  calls_.choose_kernel(kernel);
  const PlannedCall planned(placement_, Tagged(calls_.at(0)));
  const auto run = [&](int64_t idx, void* stream) { planned.run(Tagged(calls_.at(idx)), stream); };
  run(0, nullptr);
  DecodeResult result{planned.kernel(), {}};
  result.check = calls_.check_rows(check_rows);
  if (result.check.passed) result.timing = measure_rotation(placement_, calls_.size(), run, budget_);
  return result;
}

}  // namespace tessella::cli
