#include "cuda/compile/nvrtc_paths.hpp"

#include <dlfcn.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "core/environment.hpp"

namespace tessella::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

// Appends the NVRTCs in every folder that matches the pattern, the last match first: it has the highest version.
void append_matches(std::vector<std::string>& paths, const std::string& folder_pattern) {
  for (const char* name : kNames) {
    glob_t found{};
    if (::glob((folder_pattern + "/" + name).c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = found.gl_pathc; i-- > 0;) paths.emplace_back(found.gl_pathv[i]);
    }
    ::globfree(&found);
  }
}

void append_site_packages(std::vector<std::string>& paths, const std::string& site_packages) {
  append_matches(paths, site_packages + "/nvidia/cu13/lib");
  append_matches(paths, site_packages + "/nvidia/cuda_nvrtc/lib");
}

// A Python's prefix: its own nvidia packages, and with conda NVRTC itself.
void append_prefix(std::vector<std::string>& paths, const std::string& prefix) {
  if (prefix.empty()) return;
  append_site_packages(paths, prefix + "/lib/python3*/site-packages");
  append_site_packages(paths, prefix + "/lib/python3*/dist-packages");
  append_matches(paths, prefix + "/lib");
}

// Folder of the file this code is in.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&nvrtc_paths), &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? "" : path.parent_path().string();
}

// Prefixes of the python3 on PATH: where the name lies (a virtual environment), and where it leads to.
std::vector<std::string> python_prefixes() {
  const std::string path = core::environment_path("PATH");
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const fs::path python = fs::path(path.substr(begin, end - begin)) / "python3";
    begin = end + 1;
    std::error_code error;
    if (!fs::exists(python, error)) continue;
    std::vector<std::string> prefixes{python.parent_path().parent_path().string()};
    const fs::path real = fs::canonical(python, error);
    if (!error) prefixes.push_back(real.parent_path().parent_path().string());
    return prefixes;
  }
  return {};
}

}  // namespace

std::vector<std::string> nvrtc_paths() {
  if (std::string chosen = core::environment_path("TESSELLA_NVRTC"); !chosen.empty()) return {chosen};
  std::vector<std::string> paths(std::begin(kNames), std::end(kNames));
  if (const std::string own = own_folder(); !own.empty()) {
    // In a wheel the library lies in site-packages/tessella or below.
    append_matches(paths, own);
    append_site_packages(paths, own + "/..");
    append_site_packages(paths, own + "/../..");
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string toolkit = core::environment_path(variable);
    if (toolkit.empty()) continue;
    for (const char* folder : {"/lib64", "/lib"}) append_matches(paths, toolkit + folder);
  }
  append_matches(paths, "/usr/local/cuda/lib64");
  append_matches(paths, "/usr/local/cuda-*/lib64");
  append_prefix(paths, core::environment_path("VIRTUAL_ENV"));
  append_prefix(paths, core::environment_path("CONDA_PREFIX"));
  for (const std::string& prefix : python_prefixes()) append_prefix(paths, prefix);
  if (const std::string home = core::environment_path("HOME"); !home.empty()) append_prefix(paths, home + "/.local");
  return paths;
}

}  // namespace tessella::cuda
