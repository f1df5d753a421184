// Every environment variable the library reads, in one place.
#pragma once

#include <cstdlib>
#include <string_view>

namespace tessella::core {

// Name of the kernel every call must use that names none; "" = automatic.
inline std::string_view environment_kernel() {
  const char* value = std::getenv("TESSELLA_KERNEL");
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Upper bound on the threads of a call; 0 = not set, or not a positive number.
inline int environment_num_threads() {
  const char* value = std::getenv("TESSELLA_NUM_THREADS");
  const int threads = value == nullptr ? 0 : std::atoi(value);
  return threads > 0 ? threads : 0;
}

}  // namespace tessella::core
