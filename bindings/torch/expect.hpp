// What the tests of libtorch expect with. No test framework: what libtorch's binaries say of std::string decides which
// would link.
#pragma once

#include <cstdio>
#include <string>
#include <tessella/error.hpp>

inline int num_failed = 0;

inline void expect(bool is_true, const char* what) {
  if (is_true) return;
  ++num_failed;
  std::printf("failed: %s\n", what);
}

template <typename Function>
void expect_error(tessella::ErrorCode code, const std::string& message, Function&& function) {
  try {
    function();
    expect(false, ("no error: " + message).c_str());
  } catch (const tessella::Error& error) {
    expect(error.code() == code && std::string(error.what()).find(message) == 0, error.what());
  }
}

// The program's exit status.
inline int report() {
  std::printf("%d failed\n", num_failed);
  return num_failed == 0 ? 0 : 1;
}
