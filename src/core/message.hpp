// Builds the texts of errors and explanations.
#pragma once

#include <sstream>
#include <string>

namespace tessella::core {

template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace tessella::core
