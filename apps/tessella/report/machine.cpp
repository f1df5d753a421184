#include "report/machine.hpp"

#include <fmt/chrono.h>

#include <ctime>
#include <fstream>
#include <string_view>

#include "files/input_error.hpp"
#include "options/number_string.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {
namespace {

// The processor in its own words, where Linux tells.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

Json library_info() {
  Json info = Json::object();
  const std::string lines = tessella_info();
  if (lines.empty()) throw InputError(tessella_last_error());  // a variable of the environment
  for (const std::string& line : split(lines, '\n')) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) info[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return info;
}

Json about_run(const std::string& command) {
  return {{"command", command},
          {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"processor", processor()},
          {"library", library_info()}};
}

}  // namespace tessella::cli
