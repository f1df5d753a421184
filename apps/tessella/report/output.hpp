// Results, on stdout.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "files/input_error.hpp"

namespace tessella::cli {

inline std::string stdout_error() { return fmt::format("cannot write the results: {}", std::strerror(errno)); }

// Results; an InputError where stdout takes no more.
template <typename... Values>
void put(fmt::format_string<Values...> format, Values&&... values) {
  const std::string string = fmt::format(format, std::forward<Values>(values)...);
  if (std::fwrite(string.data(), 1, string.size(), stdout) != string.size()) throw InputError(stdout_error());
}

}  // namespace tessella::cli
