#include "files/array_file.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "files/array_names.hpp"
#include "files/foreign_format.hpp"
#include "files/input_error.hpp"
#include "files/mapped_file.hpp"
#include "files/npy.hpp"
#include "files/npz.hpp"
#include "files/printable.hpp"
#include "files/safetensors.hpp"

namespace tessella::cli {
namespace {

bool starts_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::string extension_of(const std::string& path) { return std::filesystem::path(path).extension().string(); }

// The signal of a file too large would end the program before what was begun is removed; ignored, it is an error of
// the write.
class IgnoredFileSizeSignal {
 public:
  IgnoredFileSizeSignal() : before_(std::signal(SIGXFSZ, SIG_IGN)) {}
  ~IgnoredFileSizeSignal() {
    if (before_ != SIG_ERR) std::signal(SIGXFSZ, before_);
  }
  IgnoredFileSizeSignal(const IgnoredFileSizeSignal&) = delete;
  IgnoredFileSizeSignal& operator=(const IgnoredFileSizeSignal&) = delete;

 private:
  void (*before_)(int);
};

// A file is whole or as it was: it is written beside its path and renamed.
void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  const fs::file_status before = fs::status(target, error);
  const bool is_file = !fs::exists(before) || fs::is_regular_file(before);
  const std::string written = is_file ? fmt::format("{}.{}", target.string(), ::getpid()) : path;
  errno = 0;
  std::ofstream file(written, std::ios::binary | std::ios::trunc);
  if (fs::is_regular_file(before)) fs::permissions(written, before.permissions(), error);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  const bool is_there = file && (!is_file || std::rename(written.c_str(), target.c_str()) == 0);
  if (is_there) return;
  const int problem = errno;
  if (is_file) fs::remove(written, error);
  throw InputError(fmt::format("{}: cannot write: {}", path, std::strerror(problem)));
}

std::vector<ListedArray> list_any(const std::string& path) {
  const SharedBytes file = map_file(path);
  if (file.bytes.empty()) throw InputError(fmt::format("{}: is empty, expected .npy, .npz or .safetensors", path));
  const std::string extension = extension_of(path);
  if (starts_with(file.bytes, kNpyMagic)) return {list_npy(path, file)};
  if (is_safetensors(file.bytes)) return list_safetensors(path, file);
  refuse_foreign_format(path, file.bytes);
  if (starts_with(file.bytes, "PK") || extension == ".npz") return list_npz(path, file);
  if (extension == ".npy") return {list_npy(path, file)};
  if (extension == ".safetensors") return list_safetensors(path, file);
  throw InputError(fmt::format("{}: extension is '{}', expected .npy, .npz or .safetensors", path, extension));
}

// Which of several arrays with one name is meant, nobody knows: the first stands for them, and cannot be read.
void join_namesakes(std::vector<ListedArray>& arrays) {
  std::unordered_map<std::string, size_t> counts;
  for (const ListedArray& array : arrays) ++counts[array.name];
  if (counts.size() == arrays.size()) return;
  std::unordered_set<std::string> seen;
  std::erase_if(arrays, [&](const ListedArray& array) { return !seen.insert(array.name).second; });
  for (ListedArray& array : arrays) {
    const size_t count = counts[array.name];
    if (count == 1) continue;
    array.load = [count](const ListedArray& listed, const ArrayCheck&) -> Array {
      throw InputError(fmt::format("{}: the file has {} arrays of this name, expected one", listed.source, count));
    };
  }
}

}  // namespace

std::vector<ListedArray> list_array_file(const std::string& path) {
  std::vector<ListedArray> arrays = list_any(path);
  join_namesakes(arrays);
  return arrays;
}

Array read_one_array(const std::string& where, const ArrayCheck& check) {
  std::string path = where;
  std::string name;
  const size_t colon = where.rfind(':');
  if (colon != std::string::npos && !std::filesystem::exists(where)) {
    path = where.substr(0, colon);
    name = where.substr(colon + 1);
  }
  const std::vector<ListedArray> arrays = list_array_file(path);
  if (!name.empty()) {
    const auto found = std::ranges::find(arrays, name, &ListedArray::name);
    if (found != arrays.end()) return found->read(check);
    throw InputError(fmt::format("{}: no array is called '{}'; it has {}", path, shown_name(name), names_of(arrays)));
  }
  if (arrays.size() != 1) {
    throw InputError(fmt::format("{}: has {} arrays, say which: {}:NAME, NAME out of {}", path, arrays.size(), path,
                                 names_of(arrays)));
  }
  return arrays.front().read(check);
}

void check_writable(const std::string& path, size_t num_arrays) {
  const std::string extension = extension_of(path);
  if (extension != ".npy" && extension != ".npz" && extension != ".safetensors") {
    throw InputError(fmt::format("{}: extension is '{}', expected .npy, .npz or .safetensors", path, extension));
  }
  if (extension == ".npy" && num_arrays != 1) {
    throw InputError(
        fmt::format("{}: a .npy file holds one array, not {}; use .npz or .safetensors", path, num_arrays));
  }
  const auto fail = [&](int error) {
    throw InputError(fmt::format("{}: cannot write: {}", path, std::strerror(error)));
  };
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail(errno);
  if (exists && S_ISDIR(status.st_mode)) fail(EISDIR);
  if (exists && ::access(path.c_str(), W_OK) != 0) fail(errno);
  if (exists && !S_ISREG(status.st_mode)) return;
  std::error_code ignored;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, ignored);
  if (::access((target.parent_path() / ".").c_str(), W_OK | X_OK) != 0) fail(errno);
}

void write_array_file(const std::string& path, std::span<const Array> arrays) {
  check_writable(path, arrays.size());
  const IgnoredFileSizeSignal ignored;
  const std::string extension = extension_of(path);
  if (extension == ".npy") return write_bytes(path, to_npy(arrays.front()));
  if (extension == ".npz") return write_npz(path, arrays);
  write_bytes(path, to_safetensors(arrays));
}

bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  // Of a relative path that is not there weakly_canonical() leaves "a" and "./a" apart.
  const auto full = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(path, ignored), ignored); };
  return fs::equivalent(a, b, ignored) || full(a) == full(b);
}

}  // namespace tessella::cli
