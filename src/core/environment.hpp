// Every environment variable the library reads, in one place.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace tessella::core {

// Name of the kernel every call must use that names none; "" = automatic.
inline std::string_view environment_kernel() {
  const char* value = std::getenv("TESSELLA_KERNEL");
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Whether every call checks the values of tables that live on a GPU, as option check_device_values does for one.
inline bool environment_check_device_values() {
  const char* value = std::getenv("TESSELLA_CHECK_DEVICE_VALUES");
  return value != nullptr && std::string_view(value) == "1";
}

// Upper bound on the threads of a call; 0 = not set, or not a positive number.
inline int environment_num_threads() {
  const char* value = std::getenv("TESSELLA_NUM_THREADS");
  const int threads = value == nullptr ? 0 : std::atoi(value);
  return threads > 0 ? threads : 0;
}

// Folders and paths: TESSELLA_CACHE_DIR, TESSELLA_NVRTC, and those of the system that say where things lie
// (XDG_CACHE_HOME, HOME, PATH, CUDA_HOME, CUDA_PATH, VIRTUAL_ENV, CONDA_PREFIX). "" = not set.
inline std::string environment_path(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace tessella::core
