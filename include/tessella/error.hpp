// Error: what every call of the C++ API throws; code and message come from the C API.
#pragma once

#include <stdexcept>

#include <tessella/tessella.h>

namespace tessella {

enum class ErrorCode : int32_t {
  invalid_argument = TESSELLA_INVALID_ARGUMENT,
  unsupported = TESSELLA_UNSUPPORTED,
  out_of_memory = TESSELLA_OUT_OF_MEMORY,
  device = TESSELLA_DEVICE,
  compile = TESSELLA_COMPILE,
  io = TESSELLA_IO,
  internal = TESSELLA_INTERNAL,
  cancelled = TESSELLA_CANCELLED,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const char* message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

namespace detail {
inline void check(tessella_status status) {
  if (status != TESSELLA_OK) throw Error(static_cast<ErrorCode>(status), tessella_last_error());
}
}  // namespace detail

}  // namespace tessella
