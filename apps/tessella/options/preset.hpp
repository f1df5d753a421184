// Presets: values of options under one name.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string>

#include "files/input_error.hpp"
#include "options/command.hpp"

namespace tessella::cli {

template <typename Settings>
struct Preset {
  const char* name;
  const char* help;
  struct {
    std::string Settings::*member;
    const char* option;
    const char* value;
  } values[6];
};

// Values of the preset where the command line gives none.
template <typename Settings>
void apply_preset(const Command& command, std::span<const Preset<Settings>> presets, Settings& settings) {
  if (settings.preset.empty()) return;
  const auto preset = std::ranges::find_if(presets, [&](const auto& row) { return row.name == settings.preset; });
  if (preset == presets.end()) {
    std::string names;
    for (const auto& row : presets) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    throw InputError(fmt::format("--preset is '{}', expected one of {}", settings.preset, names));
  }
  for (const auto& value : preset->values) {
    if (value.option && !command.is_given(value.option)) settings.*value.member = value.value;
  }
}

// "gpt2: 12 heads x 64, ...; llama: ..."
template <typename Settings>
std::string preset_help(std::span<const Preset<Settings>> presets) {
  std::string help;
  for (const auto& row : presets) help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", row.name, row.help);
  return help;
}

}  // namespace tessella::cli
