// How help shows an option's value.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "files/input_error.hpp"

namespace tessella::cli {

// A name for the value, and the default in brackets where there is one: "--layout bshd|bhsd [bshd]".
inline CLI::Option* show_value(CLI::Option* option, const std::string& name, const std::string& preset) {
  return option->option_text(preset.empty() ? name : fmt::format("{} [{}]", name, preset));
}

// "--check 5" would read a file 5, and check another number of rows.
inline void expect_no_rows_behind_check(const std::string& check, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const bool is_number = !file.empty() && file.find_first_not_of("0123456789") == file.npos;
    if (check.empty() || !is_number || std::filesystem::exists(file)) continue;
    throw InputError(fmt::format("FILE is '{}', and no such file is there; rows are given as --check={}", file, file));
  }
}

// Options before a subcommand would be dropped.
inline void expect_no_options_before(const CLI::App& command, const std::string& subcommand) {
  for (const CLI::Option* given : command.parse_order()) {
    const CLI::Option* own = command.get_subcommand(subcommand)->get_option_no_throw(given->get_name());
    throw InputError(own == nullptr
                         ? fmt::format("{} is given before {}, which has no such option", given->get_name(), subcommand)
                         : fmt::format("{} is given before {}, expected behind it", given->get_name(), subcommand));
  }
}

}  // namespace tessella::cli
