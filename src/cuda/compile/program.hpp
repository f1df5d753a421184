// A kernel as its source: a header of the library's device code, one instance of a template in it, and the caller's
// source.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/compile/content_hash.hpp"
#include "cuda/compile/target.hpp"

namespace tessella::cuda {

struct Program {
  std::string header;          // "cuda/kernels/forward_sm80/forward_sm80.cuh"
  std::string expression;      // "tessella::device::forward_sm80<tessella::Config{.tile_q = 128}>"
  std::string user_source;     // device code includes it as "user.hpp", even if it is empty
  bool arch_specific = false;  // needs sm_90a where others take sm_90
  auto operator<=>(const Program&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// A file that device code may include, under the name it is included by.
struct DeviceSource {
  std::string_view name;
  std::string_view content;
};

// src/portable/*.hpp and src/cuda/**.cuh; a generated file.
std::span<const DeviceSource> device_sources();

// The program's main file, and every header it reaches.
std::string main_source(const Program& program);
std::vector<DeviceSource> headers_of(const Program& program);

// Options of the compiler for a target.
std::vector<std::string> compile_options(const Target& target);

// Names everything that an image depends on but the compiler's version.
Hash128 program_key(const Program& program, const Target& target);

}  // namespace tessella::cuda
