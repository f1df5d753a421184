#include "options/number_string.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

struct Unit {
  double size;
  const char* name;
};

// The largest unit that leaves at least 1 in front of it.
template <size_t N>
std::string with_unit(double value, const Unit (&units)[N], int digits) {
  for (const Unit& unit : units) {
    if (value >= unit.size || &unit == &units[N - 1]) {
      const double scaled = value / unit.size;
      const int whole = scaled >= 100 ? 3 : scaled >= 10 ? 2 : 1;
      return fmt::format("{:.{}f} {}", scaled, std::max(0, digits - whole), unit.name);
    }
  }
  return {};
}

}  // namespace

double parse_number(std::string_view what, std::string_view string) {
  double value = 0;
  const auto [end, error] = std::from_chars(string.data(), string.data() + string.size(), value);
  if (string.empty() || error == std::errc::invalid_argument || end != string.data() + string.size()) {
    throw InputError(fmt::format("{} is '{}', expected a number", what, string));
  }
  if (error == std::errc::result_out_of_range) {
    throw InputError(fmt::format("{} is {}, expected a number that float64 can hold", what, string));
  }
  return value;
}

float parse_float(std::string_view what, std::string_view string) {
  float value = 0;
  const auto [end, error] = std::from_chars(string.data(), string.data() + string.size(), value);
  if (end == string.data() + string.size() && error == std::errc::result_out_of_range) {
    throw InputError(fmt::format("{} is {}, expected a number that float32 can hold", what, string));
  }
  parse_number(what, string);
  if (!std::isfinite(value)) throw InputError(fmt::format("{} is {}, expected a finite number", what, string));
  return value;
}

int64_t parse_integer(std::string_view what, std::string_view string) {
  std::string_view digits = string;
  int64_t unit = 1;
  if (!digits.empty()) {
    const char last = digits.back();
    unit = last == 'k' ? int64_t{1} << 10 : last == 'm' ? int64_t{1} << 20 : last == 'g' ? int64_t{1} << 30 : 1;
    if (unit != 1) digits.remove_suffix(1);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
      std::abs(static_cast<double>(value)) * static_cast<double>(unit) >= 0x1p63) {
    throw InputError(fmt::format("{} is '{}', expected a whole number", what, string));
  }
  return value * unit;
}

int64_t parse_integer_between(std::string_view what, std::string_view string, int64_t low, int64_t high) {
  const int64_t value = parse_integer(what, string);
  if (value < low || value > high) {
    throw InputError(fmt::format("{} is {}, expected {} to {}", what, value, low, high));
  }
  return value;
}

uint64_t parse_unsigned(std::string_view what, std::string_view string) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(string.data(), string.data() + string.size(), value);
  if (string.empty() || error != std::errc() || end != string.data() + string.size()) {
    throw InputError(fmt::format("{} is {}, expected a whole number of 0 to {}", what, string.empty() ? "''" : string,
                                 std::numeric_limits<uint64_t>::max()));
  }
  return value;
}

std::vector<std::string> split(std::string_view string, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = string.find(separator, begin);
    parts.emplace_back(string.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::vector<int64_t> parse_sizes(std::string_view what, std::string_view string) {
  constexpr int64_t kMost = int64_t{1} << 40;
  std::vector<int64_t> sizes;
  for (const std::string& part : split(string, ',')) {
    const size_t colon = part.find(':');
    const int64_t first = parse_integer_between(what, part.substr(0, colon), 1, kMost);
    const int64_t last =
        colon == std::string::npos ? first : parse_integer_between(what, part.substr(colon + 1), first, kMost);
    for (int64_t size = first; size <= last; size *= 2) sizes.push_back(size);
  }
  return sizes;
}

bool is_number_list(std::string_view string) {
  return !string.empty() && string.find_first_not_of("0123456789+-.,eEinfa") == std::string_view::npos &&
         string.find_first_of("0123456789") != std::string_view::npos;
}

std::vector<double> parse_numbers(std::string_view what, std::string_view string) {
  std::vector<double> numbers;
  for (const std::string& part : split(string, ',')) numbers.push_back(parse_number(what, part));
  return numbers;
}

std::string bytes_string(double bytes) {
  static constexpr Unit kUnits[] = {{0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}};
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  return with_unit(bytes, kUnits, 3);
}

std::string seconds_string(double seconds) {
  static constexpr Unit kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
  return with_unit(seconds, kUnits, 3);
}

std::string error_string(double error) { return error == 0 ? "0" : fmt::format("{:.1e}", error); }

}  // namespace tessella::cli
