// What `tessella tune` has measured on GPUs that many have: for matrices that nobody has measured on the machine
// itself.
#pragma once

#include <string_view>

namespace tessella::core {

// Lines of a Dataflow.
std::string_view shipped_dataflow();

}  // namespace tessella::core
