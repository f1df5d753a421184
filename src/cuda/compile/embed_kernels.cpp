// Runs while the library is built: compiles the precompiled programs and writes them, one record after another, into
// the file that embedded_cubins.cpp carries.
//
// usage: embed_kernels OUTPUT CACHE_FOLDER NVRTC
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/compile/precompiled_programs.hpp"

namespace {

std::string records(const char* cache_folder, const char* nvrtc_path) {
  using namespace tessella::cuda;
  const Nvrtc compiler = Nvrtc::open(nvrtc_path);
  CubinStore store(cache_folder, &compiler);  // a build after a small change compiles what changed
  std::string all;
  for (const PrecompiledProgram& precompiled : precompiled_programs()) {
    for (const Target& target : precompiled.targets) all += pack(*store.get(precompiled.program, target));
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: embed_kernels OUTPUT CACHE_FOLDER NVRTC\n", stderr);
    return 2;
  }
  try {
    const std::string bytes = records(argv[2], argv[3]);
    std::ofstream file(argv[1], std::ios::binary | std::ios::trunc);
    file << bytes;
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "embed_kernels: cannot write %s\n", argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_kernels: %s\n", error.what());
  }
  return 1;
}
