// Names out of files, as messages show them.
#pragma once

#include <string>
#include <string_view>

namespace tessella::cli {

// Control characters, which could end a line or steer a terminal, become \n or \xNN.
std::string printable(std::string_view string);

// The same, and no longer than a line has room for.
std::string shown_name(std::string_view name);

}  // namespace tessella::cli
