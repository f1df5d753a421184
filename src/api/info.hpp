// Strings about the library and the machine.
#pragma once

#include <string>

#include "core/kernel.hpp"

namespace tessella::api {

struct KernelStrings {
  std::string name, summary, architectures, dtypes, automatic, features, unavailable;
};
// Lives as long as the process.
const KernelStrings& kernel_strings(const core::Kernel& kernel);

std::string info();

}  // namespace tessella::api
