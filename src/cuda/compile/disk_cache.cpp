#include "cuda/compile/disk_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

#include "core/environment.hpp"
#include "core/message.hpp"

namespace tessella::cuda {
namespace {

namespace fs = std::filesystem;
using core::message;

constexpr std::chrono::seconds kLongestWait{60};
constexpr const char* kSuffix = ".cubin";

std::string error_string() { return std::generic_category().message(errno); }

std::optional<Cubin> read_file(const std::string& path, const Hash128& key) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string_view rest = bytes;
  std::optional<Cubin> cubin = unpack(rest, true);
  if (!cubin || !rest.empty() || cubin->key != key) return std::nullopt;
  cubin->origin = Cubin::Origin::disk;
  return cubin;
}

// Everything, or false.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string DiskCache::default_folder() {
  if (std::string chosen = core::environment_path("TESSELLA_CACHE_DIR"); !chosen.empty()) return chosen;
  if (std::string xdg = core::environment_path("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/tessella";
  if (std::string home = core::environment_path("HOME"); !home.empty()) return home + "/.cache/tessella";
  return "";
}

std::string DiskCache::reading_problem() const {
  if (folder_.empty()) return "no folder: TESSELLA_CACHE_DIR, XDG_CACHE_HOME and HOME are not set";
  struct stat status {};
  if (::stat(folder_.c_str(), &status) != 0) return message(folder_, ": ", error_string());
  if (!S_ISDIR(status.st_mode)) return message(folder_, " is no folder");
  // Images from this folder run on the GPU and read this user's data.
  if (status.st_uid != ::geteuid() && status.st_uid != 0) return message(folder_, " belongs to another user");
  if ((status.st_mode & S_IWOTH) != 0) return message(folder_, " can be written by every user");
  return "";
}

std::string DiskCache::problem() const {
  const std::string problem = own_problem();
  const bool is_chosen = !problem.empty() && folder_ == core::environment_path("TESSELLA_CACHE_DIR");
  return is_chosen ? message(problem, " (TESSELLA_CACHE_DIR)") : problem;
}

std::string DiskCache::own_problem() const {
  if (!folder_.empty()) {
    std::error_code error;
    fs::create_directories(fs::path(folder_).parent_path(), error);
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return message(folder_, ": ", error_string());
  }
  if (std::string problem = reading_problem(); !problem.empty()) return problem;
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) return message(folder_, ": ", error_string());
  return "";
}

std::string DiskCache::path_of(const Hash128& key, CompilerVersion compiler) const {
  return message(folder_, "/", key.hex(), "-", compiler.string(), kSuffix);
}

std::optional<Cubin> DiskCache::read(const Hash128& key, CompilerVersion compiler) const {
  if (!reading_problem().empty()) return std::nullopt;
  std::optional<Cubin> cubin = read_file(path_of(key, compiler), key);
  return cubin && cubin->compiler == compiler ? cubin : std::nullopt;
}

std::optional<Cubin> DiskCache::read_any(const Hash128& key, CompilerVersion newest) const {
  std::optional<Cubin> best;
  if (!reading_problem().empty()) return best;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(folder_.c_str()), ::closedir);
  if (folder == nullptr) return best;
  const std::string prefix = key.hex() + "-";
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(prefix) || !file.ends_with(kSuffix)) continue;
    std::optional<Cubin> cubin = read_file(message(folder_, "/", file), key);
    if (cubin && cubin->compiler <= newest && (!best || best->compiler < cubin->compiler)) best = std::move(cubin);
  }
  return best;
}

bool DiskCache::write(const Cubin& cubin) const {
  if (!problem().empty()) return false;
  const std::string path = path_of(cubin.key, cubin.compiler);
  const std::string temporary = message(folder_, "/.", ::getpid(), "-", std::random_device()(), ".tmp");
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool is_written = write_all(file, pack(cubin));
  if (::close(file) == 0 && is_written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

// One byte of one file stands for a key. The lock is of the open file, not of the process, so that threads and stores
// of one process exclude each other too, and it ends with the process.
DiskCache::Claim::Claim(const DiskCache& cache, const Hash128& key)
    : byte_(static_cast<int64_t>(key.low & 0x3FFFFFFFFFFFFFFF)) {
  if (!cache.problem().empty()) return;
  file_ = ::open((cache.folder() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (file_ >= 0 && !set_lock(F_WRLCK) && (errno == EAGAIN || errno == EACCES) &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

DiskCache::Claim::~Claim() {
  if (file_ < 0) return;
  set_lock(F_UNLCK);  // a forked process may hold the open file, so closing it here would not unlock it
  ::close(file_);
}

bool DiskCache::Claim::set_lock(short type) const {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte_;
  lock.l_len = 1;
  return ::fcntl(file_, F_OFD_SETLK, &lock) == 0;
}

}  // namespace tessella::cuda
