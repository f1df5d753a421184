// Every environment variable the library reads, in one file. One that cannot mean anything is an error like a bad
// argument is.
#pragma once

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {

// Name of the kernel that every call of its operation must use that names none; "" = automatic.
inline constexpr const char* kKernelVariable = "TESSELLA_KERNEL";
inline std::string_view environment_kernel() {
  const char* value = std::getenv(kKernelVariable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Whether every call checks the values of tables that live on a GPU, as option check_device_values does for one. Calls
// on the CPU ask too, so that a value that means nothing is an error on every machine.
inline bool environment_check_device_values() {
  const char* value = std::getenv("TESSELLA_CHECK_DEVICE_VALUES");
  const std::string_view string = value == nullptr ? "" : value;
  if (string != "" && string != "0" && string != "1") {
    invalid(message("TESSELLA_CHECK_DEVICE_VALUES is '", string, "', expected 0 or 1"));
  }
  return string == "1";
}

// Upper bound on the threads of a call; 0 = not set.
inline int environment_num_threads() {
  const char* value = std::getenv("TESSELLA_NUM_THREADS");
  const std::string_view string = value == nullptr ? "" : value;
  if (string.empty()) return 0;
  int threads = 0;
  const auto [end, error] = std::from_chars(string.data(), string.data() + string.size(), threads);
  if (error != std::errc() || end != string.data() + string.size() || threads < 1) {
    invalid(message("TESSELLA_NUM_THREADS is '", string, "', expected a number of at least 1"));
  }
  return threads;
}

// Folders and paths: TESSELLA_CACHE_DIR, TESSELLA_NVRTC, TESSELLA_CUBLAS, TESSELLA_BLAS, and those of the system that
// say where things lie (XDG_CACHE_HOME, HOME, PATH, CUDA_HOME, CUDA_PATH, VIRTUAL_ENV, CONDA_PREFIX). "" = not set.
inline std::string environment_path(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace tessella::core
