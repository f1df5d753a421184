// Every argument and option of a call under the library's own name, from one table.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/placement.hpp"
#include "options/call.hpp"
#include "options/command.hpp"

namespace tessella::cli {

// Whether --NAME is one of them.
bool is_attention_option(std::string_view name);

class AttentionOptionValues {
 public:
  // Out of line: every command has them.
  AttentionOptionValues();
  AttentionOptionValues(const AttentionOptionValues& other);
  AttentionOptionValues& operator=(const AttentionOptionValues& other) = delete;
  ~AttentionOptionValues();

  // Adds --scale, --softcap, ... and --mask to a command.
  void add_to(Command& command);
  // The same without --mask, for commands that run over a list of masks.
  void add_without_mask_to(Command& command);
  // Fills the call, whose q, k and v are already set: reads files, parses numbers.
  void apply(Call& call) const;
  // Whether one of them has values per head, sequence or row: the call's shape is then theirs.
  bool has_tensors() const;
  // Of --device.
  Placement placement() const { return parse_placement(device_); }
  // The value of --kernel, which then counts as not given: for commands that take a list of kernels.
  std::string take_kernel();

 private:
  std::string device_ = "cpu";
  std::map<std::string, std::string> values_;  // by option name; absent where not given
  std::map<std::string, bool> flags_;
  std::vector<std::string> masks_;
};

}  // namespace tessella::cli
