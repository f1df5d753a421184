// Writes small valid files for the fuzz targets to begin from: seeds DIRECTORY.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "files/npy.hpp"
#include "files/npz.hpp"
#include "files/safetensors.hpp"

namespace cli = tessella::cli;

namespace {

void write(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: seeds DIRECTORY\n", stderr), 2;
  const std::filesystem::path folder = argv[1];
  std::vector<cli::Array> arrays;
  for (const auto& [name, dtype] : {std::pair{"q", TESSELLA_F32}, {"k", TESSELLA_BF16}, {"v", TESSELLA_F16}}) {
    const int64_t shape[] = {1, 2, 1, 3};
    arrays.push_back(cli::allocate_array(name, dtype, shape));
    write(folder / "npy" / name, cli::to_npy(arrays.back()));
  }
  write(folder / "safetensors" / "qkv", cli::to_safetensors(arrays));
  std::filesystem::create_directories(folder / "npz");
  cli::write_npz((folder / "npz" / "qkv").string(), arrays);
}
