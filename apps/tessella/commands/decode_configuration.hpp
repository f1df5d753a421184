// One measurement of bench decode: a case of decoding, its read ceiling, and kernels over it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "commands/decode_calls.hpp"
#include "commands/not_measured.hpp"
#include "report/timing.hpp"

namespace tessella::cli {

struct DecodeResult {
  std::string kernel;
  Timing timing;  // of one call
  tessella_check_report check = TESSELLA_CHECK_REPORT_INIT;
};

class DecodeConfiguration {
 public:
  // Empty, with the reason, where memory would not do.
  static std::unique_ptr<DecodeConfiguration> make(const DecodeCase& decode_case, const AttentionOptionValues& options,
                                                   double budget, NotMeasured& missing);

  size_t cache_bytes() const { return calls_.layout().cache_bytes; }
  int num_threads() const { return num_threads_; }  // of a CPU, which calls and the plain read have; 0: a GPU
  // Of as many bytes, by a kernel or loop that does nothing else.
  double read_seconds() const { return read_seconds_; }

  // Checked, then timed; of a wrong result the timing is empty. Empty where the library cannot compute it or fails.
  std::optional<DecodeResult> run(const std::string& kernel, int64_t check_rows, NotMeasured& missing);

 private:
  DecodeConfiguration(const DecodeCase& decode_case, const AttentionOptionValues& options, double budget);
  DecodeResult measure(const std::string& kernel, int64_t check_rows);

  Placement placement_;
  double budget_;
  DecodeCalls calls_;
  int num_threads_;
  double read_seconds_;
};

}  // namespace tessella::cli
