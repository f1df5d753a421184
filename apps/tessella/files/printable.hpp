// Names out of files, as messages show them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace tessella::cli {

// Control characters, which could end a line or steer a terminal, become \n or \xNN.
inline std::string printable(std::string_view string) {
  std::string shown;
  for (const char c : string) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      shown += "\\n";
    } else if (code < ' ' || code == 0x7F) {
      shown += fmt::format("\\x{:02x}", code);
    } else {
      shown += c;
    }
  }
  return shown;
}

// The same, and no longer than a line has room for.
inline std::string shown_name(std::string_view name) {
  constexpr size_t kMost = 80;
  if (name.size() <= kMost) return printable(name);
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
  return printable(name.substr(0, end)) + "...";
}

}  // namespace tessella::cli
