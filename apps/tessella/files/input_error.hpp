// What the user gave cannot be used: one line for stderr, exit code 2.
#pragma once

#include <stdexcept>
#include <string>

namespace tessella::cli {

class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tessella::cli
