// Compiles the precompiled programs before they are needed.
#pragma once

#include <string>

#include "core/backend.hpp"

namespace tessella::cuda {

// Compiles kernels into the cache folder, for targets ("sm_90,sm_80"; "" = this machine's GPUs, or all embedded targets
// without a GPU) and one kernel of the table ("" = all). Programs that the library embeds are not compiled again. Needs
// no GPU. Throws Error(invalid_argument) for an unknown target or kernel, Error(io) if the folder cannot be written,
// Error(compile) without NVRTC.
void prebuild(const std::string& targets, const std::string& kernel, const core::Progress& progress);

}  // namespace tessella::cuda
