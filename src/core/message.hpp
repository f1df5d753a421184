// Builds the messages of errors and explanations.
#pragma once

#include <sstream>
#include <string>

namespace tessella::core {

template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream string;
  (string << ... << parts);
  return string.str();
}

}  // namespace tessella::core
