// The backend and what it finds on this machine, as lines "name: value".
#pragma once

#include <string>

namespace tessella::cuda {

std::string info_lines();

}  // namespace tessella::cuda
