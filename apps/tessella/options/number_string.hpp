// Numbers as users write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// InputError "<what> is '<string>', expected ..." if the whole string is no such number. Signed integers take k, m and
// g for 2^10, 2^20 and 2^30.
double parse_number(std::string_view what, std::string_view string);
float parse_float(std::string_view what, std::string_view string);  // finite, and 0 only where 0 is written
int64_t parse_integer(std::string_view what, std::string_view string);
int64_t parse_integer_between(std::string_view what, std::string_view string, int64_t low, int64_t high);

uint64_t parse_unsigned(std::string_view what, std::string_view string);  // every value of 64 bits; no unit

std::vector<std::string> split(std::string_view string, char separator);

// "512:16384" doubles from the first to the last; "1k,4k" lists; both may be mixed. All at least 1.
std::vector<int64_t> parse_sizes(std::string_view what, std::string_view string);

// True for "1", "1,2.5,-3": what an option takes in place of a file.
bool is_number_list(std::string_view string);
std::vector<double> parse_numbers(std::string_view what, std::string_view string);

std::string bytes_string(double bytes);      // "3.2 MiB"
std::string seconds_string(double seconds);  // "1.23 ms"
std::string error_string(double error);      // "1.2e-07", "0"

}  // namespace tessella::cli
