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

// all: what releases carry. common: what a first call of a common model needs on Hopper, forward, backward and decoding
// at head dims 64, 128 and 256 in bf16 and f16; a build that somebody waits for has no more.
enum class Precompiled { common, all };

std::vector<PrecompiledProgram> precompiled_programs(Precompiled which = Precompiled::all);

}  // namespace tessella::cuda
