// `attend --backward`: the gradient of out out of a file, and gradients into files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "commands/result_files.hpp"
#include "device/placement.hpp"
#include "options/command.hpp"

namespace tessella::cli {

struct BackwardFiles {
  std::string d_out;       // "" = no backward
  std::string d_lse;       // "" = 0
  std::string dq, dk, dv;  // "" = not written
  std::string gradients;   // all of them in one file

  void add_to(Command& command);
  bool is_wanted() const { return !d_out.empty(); }

  // InputError if one is given without d_out, cannot be written, or is the file of another result.
  void check_writable(const ResultFiles& results) const;
  // InputError if one is the file of an input.
  void check_is_none(const std::string& input) const;

  // Reads d_out and d_lse and sets the call's gradients: those that have a file of their own, or all where none has.
  // Returns these as the files are laid out.
  std::vector<Array> prepare(const AttendInputs& inputs, Call& call) const;
  void write(std::span<const Array> arrays) const;
  // Where a gradient is written, "" if nowhere.
  std::string file_of(const std::string& name) const;
};

// Copies gradients that were computed elsewhere to what prepare() returned.
void fetch_gradients(const Placement& placement, const Call& call, std::span<const Array> arrays);

}  // namespace tessella::cli
