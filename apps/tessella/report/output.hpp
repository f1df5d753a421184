// Results, on stdout.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace tessella::cli {

std::string stdout_error();

// An InputError where stdout takes no more.
void put_string(std::string_view string);

template <typename... Values>
void put(fmt::format_string<Values...> format, Values&&... values) {
  put_string(fmt::vformat(format, fmt::make_format_args(values...)));
}

}  // namespace tessella::cli
