#include "files/printable.hpp"

#include <fmt/core.h>

namespace tessella::cli {

std::string printable(std::string_view string) {
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

std::string shown_name(std::string_view name) {
  constexpr size_t kMost = 80;
  if (name.size() <= kMost) return printable(name);
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
  return printable(name.substr(0, end)) + "...";
}

}  // namespace tessella::cli
