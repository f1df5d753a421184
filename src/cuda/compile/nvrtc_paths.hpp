// Paths to search for NVRTC.
#pragma once

#include <string>
#include <vector>

namespace tessella::cuda {

// Names and paths for dlopen, most wanted first: $TESSELLA_NVRTC alone when set; what the linker finds by name; beside
// this library (a wheel's neighbours); the CUDA toolkit; the nvidia packages of Python environments.
std::vector<std::string> nvrtc_paths();

}  // namespace tessella::cuda
