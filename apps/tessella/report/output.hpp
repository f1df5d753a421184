// Results, on stdout.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "files/input_error.hpp"

namespace tessella::cli {

inline std::string stdout_refusal() { return fmt::format("cannot write the results: {}", std::strerror(errno)); }

// Results; an InputError where stdout takes no more.
template <typename... Values>
void put(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw InputError(stdout_refusal());
}

}  // namespace tessella::cli
