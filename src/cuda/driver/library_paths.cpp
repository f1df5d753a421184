#include "cuda/driver/library_paths.hpp"

#include <dlfcn.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "core/environment.hpp"

namespace tessella::cuda {
namespace {

namespace fs = std::filesystem;

struct Paths {
  const SoughtLibrary& library;
  std::vector<std::string> all = {};

  // Appends those in every folder that matches the pattern, the last match first: it has the highest version.
  void append_matches(const std::string& folder_pattern) {
    for (const char* name : library.names) {
      glob_t found{};
      if (::glob((folder_pattern + "/" + name).c_str(), 0, nullptr, &found) == 0) {
        for (size_t i = found.gl_pathc; i-- > 0;) all.emplace_back(found.gl_pathv[i]);
      }
      ::globfree(&found);
    }
  }

  void append_site_packages(const std::string& site_packages) {
    append_matches(site_packages + "/nvidia/cu13/lib");
    append_matches(site_packages + "/nvidia/" + library.package + "/lib");
  }

  // A Python's prefix: its own nvidia packages, and with conda the library itself.
  void append_prefix(const std::string& prefix) {
    if (prefix.empty()) return;
    append_site_packages(prefix + "/lib/python3*/site-packages");
    append_site_packages(prefix + "/lib/python3*/dist-packages");
    append_matches(prefix + "/lib");
  }
};

// Folder of the file this code is in.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&library_paths), &info) == 0 || info.dli_fname == nullptr) return "";
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

std::vector<std::string> library_paths(const SoughtLibrary& library) {
  if (std::string chosen = core::environment_path(library.variable); !chosen.empty()) return {chosen};
  Paths paths{.library = library};
  paths.all.assign(library.names.begin(), library.names.end());
  if (const std::string own = own_folder(); !own.empty()) {
    // In a wheel the library lies in site-packages/tessella or below.
    paths.append_matches(own);
    paths.append_site_packages(own + "/..");
    paths.append_site_packages(own + "/../..");
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string toolkit = core::environment_path(variable);
    if (toolkit.empty()) continue;
    for (const char* folder : {"/lib64", "/lib"}) paths.append_matches(toolkit + folder);
  }
  paths.append_matches("/usr/local/cuda/lib64");
  paths.append_matches("/usr/local/cuda-*/lib64");
  paths.append_prefix(core::environment_path("VIRTUAL_ENV"));
  paths.append_prefix(core::environment_path("CONDA_PREFIX"));
  for (const std::string& prefix : python_prefixes()) paths.append_prefix(prefix);
  if (const std::string home = core::environment_path("HOME"); !home.empty()) paths.append_prefix(home + "/.local");
  return std::move(paths.all);
}

}  // namespace tessella::cuda
