// The one exception of the library's inside; api/ turns it into a status code and a message at the C boundary.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tessella::core {

enum class ErrorCode : int32_t {  // values are tessella_status of tessella.h
  invalid_argument = 1,
  unsupported = 2,
  out_of_memory = 3,
  device = 4,
  compile = 5,
  io = 6,
  internal = 7,
  cancelled = 8,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] inline void invalid(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }
[[noreturn]] inline void unsupported(const std::string& message) { throw Error(ErrorCode::unsupported, message); }

}  // namespace tessella::core
