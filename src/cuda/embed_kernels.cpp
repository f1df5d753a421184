// Runs while the library is built: compiles the precompiled programs and writes them, one record after another, into
// the file that embedded_cubins.cpp carries.
//
// usage: embed_kernels common|all OUTPUT CACHE_FOLDER NVRTC
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/precompiled_programs.hpp"

namespace {

using namespace tessella::cuda;

struct Record {
  const Program* program;
  Target target;
  std::string bytes;
  std::exception_ptr problem;
};

// Compiles them, as many at once as there are cores.
void compile(std::vector<Record>& records, CubinStore& store) {
  std::atomic<size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < std::max(1U, std::thread::hardware_concurrency()); ++thread) {
    threads.emplace_back([&] {
      for (size_t idx; (idx = next++) < records.size();) {
        Record& record = records[idx];
        try {
          record.bytes = pack(*store.get(*record.program, record.target));
        } catch (...) {
          record.problem = std::current_exception();
        }
      }
    });
  }
}

std::string all_records(Precompiled which, const char* cache_folder, const char* nvrtc_path) {
  const Nvrtc compiler = Nvrtc::open(nvrtc_path);
  CubinStore store(cache_folder, &compiler);  // a build after a small change compiles what changed
  const std::vector<PrecompiledProgram> programs = precompiled_programs(which);
  std::vector<Record> records;
  for (const PrecompiledProgram& precompiled : programs) {
    for (const Target& target : precompiled.targets) records.push_back({&precompiled.program, target, "", nullptr});
  }
  compile(records, store);
  std::string all;
  for (const Record& record : records) {
    if (record.problem) std::rethrow_exception(record.problem);
    all += record.bytes;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view which = argc == 5 ? argv[1] : "";
  if (which != "common" && which != "all") {
    std::fputs("usage: embed_kernels common|all OUTPUT CACHE_FOLDER NVRTC\n", stderr);
    return 2;
  }
  try {
    const std::string bytes = all_records(which == "all" ? Precompiled::all : Precompiled::common, argv[3], argv[4]);
    std::ofstream file(argv[2], std::ios::binary | std::ios::trunc);
    file << bytes;
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "embed_kernels: cannot write %s\n", argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_kernels: %s\n", error.what());
  }
  return 1;
}
