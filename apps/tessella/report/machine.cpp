#include "report/machine.hpp"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string_view>

#include "files/input_error.hpp"
#include "options/number_string.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {
namespace {

// "2026-01-31T23:59:59Z"
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char string[32];
  return {string, std::strftime(string, sizeof(string), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

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

int cpu_threads(int32_t asked) {
  const auto most = static_cast<int>(parse_integer("threads", library_info()["threads"].string()));
  return asked > 0 ? std::min<int>(asked, most) : most;
}

Json about_run(const std::string& command) {
  return {{"command", command}, {"time", utc_now()}, {"processor", processor()}, {"library", library_info()}};
}

}  // namespace tessella::cli
