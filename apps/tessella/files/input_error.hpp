// What the user gave cannot be used: one line for stderr, exit code 2.
#pragma once

#include <stdexcept>
#include <string>

namespace tessella::cli {

class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory that this machine does not give; a smaller problem might do.
class MemoryError : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace tessella::cli
