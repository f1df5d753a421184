// Compiles the precompiled programs before they are needed.
#pragma once

#include <functional>
#include <string>

namespace tessella::cuda {

using Progress = std::function<void(int num_done, int num_total, const std::string& string)>;

// Into the cache folder, for targets ("sm_90,sm_80"; "" = this machine's GPUs, without any all that are embedded) and
// one kernel of the table ("" = all). What the library carries already is not compiled again. Needs no GPU.
// Error(invalid_argument) for a target or kernel that is none, Error(io) where the folder cannot be written,
// Error(compile) without NVRTC.
void prebuild(const std::string& targets, const std::string& kernel, const Progress& progress);

}  // namespace tessella::cuda
