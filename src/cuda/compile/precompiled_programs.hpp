// The programs that are compiled when the library is built, so that their first call does not wait for a compiler.
#pragma once

#include <string>
#include <vector>

#include "cuda/compile/program.hpp"
#include "cuda/compile/target.hpp"

namespace tessella::cuda {

struct PrecompiledProgram {
  std::string kernel;  // "cuda.forward_sm80", of the table
  Program program;
  std::vector<Target> targets;
};

std::vector<PrecompiledProgram> precompiled_programs();

}  // namespace tessella::cuda
