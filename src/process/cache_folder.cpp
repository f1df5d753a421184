#include "process/cache_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <system_error>
#include <thread>

#include "core/environment.hpp"
#include "core/message.hpp"

namespace tessella::process {
namespace {

namespace fs = std::filesystem;
using core::message;

constexpr std::chrono::seconds kLongestWait{60};

std::string error_string() { return std::generic_category().message(errno); }

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

std::string CacheFolder::default_path() {
  if (std::string chosen = core::environment_path("TESSELLA_CACHE_DIR"); !chosen.empty()) return chosen;
  if (std::string xdg = core::environment_path("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/tessella";
  if (std::string home = core::environment_path("HOME"); !home.empty()) return home + "/.cache/tessella";
  return "";
}

std::string CacheFolder::reading_problem() const {
  if (path_.empty()) return "no folder: TESSELLA_CACHE_DIR, XDG_CACHE_HOME and HOME are not set";
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return message(path_, ": ", error_string());
  if (!S_ISDIR(status.st_mode)) return message(path_, " is no folder");
  // Images from this folder run on the GPU and read this user's data.
  if (status.st_uid != ::geteuid() && status.st_uid != 0) return message(path_, " belongs to another user");
  if ((status.st_mode & S_IWOTH) != 0) return message(path_, " can be written by every user");
  return "";
}

std::string CacheFolder::problem() const {
  const std::string problem = own_problem();
  const bool is_chosen = !problem.empty() && !path_.empty() && path_ == core::environment_path("TESSELLA_CACHE_DIR");
  return is_chosen ? message(problem, " (TESSELLA_CACHE_DIR)") : problem;
}

std::string CacheFolder::own_problem() const {
  if (!path_.empty()) {
    std::error_code error;
    fs::create_directories(fs::path(path_).parent_path(), error);
    if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return message(path_, ": ", error_string());
  }
  if (std::string problem = reading_problem(); !problem.empty()) return problem;
  if (::access(path_.c_str(), W_OK | X_OK) != 0) return message(path_, ": ", error_string());
  return "";
}

std::optional<std::string> CacheFolder::read(const std::string& name) const {
  if (!reading_problem().empty()) return std::nullopt;
  const std::string path = path_ + "/" + name;
  constexpr off_t kMostBytes = off_t{256} << 20;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > kMostBytes)
    return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

bool CacheFolder::write(const std::string& name, std::string_view bytes) const {
  if (!problem().empty()) return false;
  const std::string path = message(path_, "/", name);
  const std::string temporary = message(path_, "/.", ::getpid(), "-", std::random_device()(), ".tmp");
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool is_written = write_all(file, bytes);
  if (::close(file) == 0 && is_written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

// One byte of one file stands for a number. The lock is of the open file, not of the process, so that threads of one
// process exclude each other too, and it ends with the process.
CacheFolder::Claim::Claim(const CacheFolder& folder, int64_t number) : number_(number) {
  if (!folder.problem().empty()) return;
  file_ = ::open((folder.path() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (file_ >= 0 && !set_lock(F_WRLCK) && (errno == EAGAIN || errno == EACCES) &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

CacheFolder::Claim::~Claim() {
  if (file_ < 0) return;
  set_lock(F_UNLCK);  // a forked process may hold the open file, so closing it here would not unlock it
  ::close(file_);
}

bool CacheFolder::Claim::set_lock(short type) const {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = number_;
  lock.l_len = 1;
  return ::fcntl(file_, F_OFD_SETLK, &lock) == 0;
}

}  // namespace tessella::process
