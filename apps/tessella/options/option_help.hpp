// How help shows an option's value.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace tessella::cli {

// A name for the value, and the default in brackets where there is one: "--layout bshd|bhsd [bshd]".
inline CLI::Option* show_value(CLI::Option* option, const std::string& name, const std::string& preset) {
  return option->option_text(preset.empty() ? name : fmt::format("{} [{}]", name, preset));
}

}  // namespace tessella::cli
