// NVRTC, NVIDIA's run-time compiler, opened when first needed.
#pragma once

#include <string>
#include <vector>

#include "cuda/compile/cubin.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/driver/library_paths.hpp"

namespace tessella::cuda {

inline constexpr SoughtLibrary kNvrtcLibrary{
    .variable = "TESSELLA_NVRTC", .names = {"libnvrtc.so.13", "libnvrtc.so.12"}, .package = "cuda_nvrtc"};

// One opened library. Its functions may be called from any thread.
class Nvrtc {
 public:
  // Error(compile) with why it is none.
  static Nvrtc open(const std::string& path);

  const std::string& path() const { return path_; }
  CompilerVersion version() const { return version_; }
  const std::vector<int>& archs() const { return archs_; }  // that it compiles for, ascending

  // Error(compile) with the compiler's log when the program does not compile.
  Cubin compile(const Program& program, const Target& target) const;

 private:
  using Handle = struct NvrtcProgram*;
  struct Functions {
    int (*nvrtcVersion)(int* major, int* minor);
    const char* (*nvrtcGetErrorString)(int result);
    int (*nvrtcGetNumSupportedArchs)(int* count);
    int (*nvrtcGetSupportedArchs)(int* archs);
    int (*nvrtcCreateProgram)(Handle* program, const char* source, const char* name, int num_headers,
                              const char* const* sources, const char* const* names);
    int (*nvrtcDestroyProgram)(Handle* program);
    int (*nvrtcAddNameExpression)(Handle program, const char* expression);
    int (*nvrtcGetLoweredName)(Handle program, const char* expression, const char** name);
    int (*nvrtcCompileProgram)(Handle program, int num_options, const char* const* options);
    int (*nvrtcGetProgramLogSize)(Handle program, size_t* bytes);
    int (*nvrtcGetProgramLog)(Handle program, char* log);
    int (*nvrtcGetCUBINSize)(Handle program, size_t* bytes);
    int (*nvrtcGetCUBIN)(Handle program, char* image);
    int (*nvrtcGetPTXSize)(Handle program, size_t* bytes);
    int (*nvrtcGetPTX)(Handle program, char* image);
  };

  Functions functions_{};
  std::string path_;
  CompilerVersion version_;
  std::vector<int> archs_;
};

// The first NVRTC found whose images this process's driver loads: its major version is at most the driver's. Without a
// driver, the first one found. nullptr if there is none. The search runs once per process.
const Nvrtc* nvrtc();

// Why nvrtc() is nullptr and which paths were searched; "" if it is not.
std::string nvrtc_problem();

}  // namespace tessella::cuda
