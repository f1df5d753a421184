// Chooses the image that a GPU runs a program from: embedded, cached, or compiled now.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/compile/cubin.hpp"
#include "cuda/compile/program.hpp"

namespace tessella::cuda {

// Embedded images that run natively on a GPU of this arch, best first: a cubin runs on its own architecture and on
// later minor ones of the same major.
std::vector<Target> native_targets(int arch, bool arch_specific);

// The target to compile for this arch with a compiler of these archs: the arch itself; else the nearest earlier one of
// the same major; else PTX for the nearest earlier one. Nothing if there is none.
std::optional<Target> compile_target(int arch, bool arch_specific, const std::vector<int>& compiler_archs);

// The embedded image that serves a target, if this process's driver loads it; else nullptr.
std::shared_ptr<const Cubin> find_embedded_for(const Program& program, const Target& target);

// The source of the image for a target.
Cubin::Origin origin(const Program& program, const Target& target);

// The image of the program for GPUs of this arch (90 for sm_90): embedded, else from the disk cache, else compiled by
// NVRTC, else embedded PTX. Error(compile) when there is none.
std::shared_ptr<const Cubin> find_or_compile(const Program& program, int arch);

}  // namespace tessella::cuda
