// Kernels compiled when the library was built, and carried inside it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "cuda/compile/cubin.hpp"

namespace tessella::cuda {

struct EmbeddedCubin {
  CompilerVersion compiler;
  std::string target;
  std::string_view record;  // for unpack()
};

// Keyed by the program's key in hexadecimal.
const std::map<std::string, EmbeddedCubin>& embedded_cubins();

}  // namespace tessella::cuda
