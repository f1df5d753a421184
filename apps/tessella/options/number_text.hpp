// Numbers as users write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// InputError "<what> is '<text>', expected ..." if the whole text is no such number. Signed integers take k, m and g
// for 2^10, 2^20 and 2^30.
double parse_number(const std::string& what, std::string_view text);
int64_t parse_integer(const std::string& what, std::string_view text);
int64_t parse_integer_between(const std::string& what, std::string_view text, int64_t low, int64_t high);

uint64_t parse_unsigned(const std::string& what, std::string_view text);  // every value of 64 bits; no unit

std::vector<std::string> split(std::string_view text, char separator);

// "512:16384" doubles from the first to the last; "1k,4k" lists; both may be mixed. All at least 1.
std::vector<int64_t> parse_sizes(const std::string& what, std::string_view text);

// True for "1", "1,2.5,-3": what an option takes in place of a file.
bool is_number_list(std::string_view text);
std::vector<double> parse_numbers(const std::string& what, std::string_view text);

std::string bytes_text(double bytes);      // "3.2 MiB"
std::string seconds_text(double seconds);  // "1.23 ms"
std::string error_text(double error);      // "1.2e-07", "0"

}  // namespace tessella::cli
