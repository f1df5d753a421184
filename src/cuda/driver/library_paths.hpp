// Paths to search for a library of CUDA that is opened at run time.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace tessella::cuda {

struct SoughtLibrary {
  const char* variable;              // of the environment: the path of the one to open
  std::array<const char*, 2> names;  // file names, most wanted first
  const char* package;               // its folder among Python's nvidia packages, before those of CUDA 13
};

// Names and paths for dlopen, most wanted first: that of the variable alone when set; what the linker finds by name;
// beside this library (a wheel's neighbours); the CUDA toolkit; the nvidia packages of Python environments.
std::vector<std::string> library_paths(const SoughtLibrary& library);

}  // namespace tessella::cuda
