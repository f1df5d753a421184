#include "report/output.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "files/input_error.hpp"

namespace tessella::cli {

std::string stdout_error() { return fmt::format("cannot write the results: {}", std::strerror(errno)); }

void put_string(std::string_view string) {
  if (std::fwrite(string.data(), 1, string.size(), stdout) != string.size()) throw InputError(stdout_error());
}

}  // namespace tessella::cli
