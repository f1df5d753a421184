#include "cuda/compile/disk_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "core/message.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr std::chrono::seconds kLongestWait{60};
constexpr const char* kSuffix = ".cubin";

std::optional<Cubin> read_file(const process::CacheFolder& folder, const std::string& name, const Hash128& key) {
  const std::optional<std::string> bytes = folder.read(name);
  if (!bytes) return std::nullopt;
  std::string_view rest = *bytes;
  std::optional<Cubin> cubin = unpack(rest, true);
  if (!cubin || !rest.empty() || cubin->key != key) return std::nullopt;
  cubin->origin = Cubin::Origin::disk;
  return cubin;
}

std::string name_of(const Hash128& key, CompilerVersion compiler) {
  return message(key.hex(), "-", compiler.string(), kSuffix);
}

}  // namespace

std::optional<Cubin> DiskCache::read(const Hash128& key, CompilerVersion compiler) const {
  std::optional<Cubin> cubin = read_file(folder_, name_of(key, compiler), key);
  return cubin && cubin->compiler == compiler ? cubin : std::nullopt;
}

std::optional<Cubin> DiskCache::read_any(const Hash128& key, CompilerVersion newest) const {
  std::optional<Cubin> best;
  if (!folder_.reading_problem().empty()) return best;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(folder_.path().c_str()), ::closedir);
  if (folder == nullptr) return best;
  const std::string prefix = key.hex() + "-";
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(prefix) || !file.ends_with(kSuffix)) continue;
    std::optional<Cubin> cubin = read_file(folder_, std::string(file), key);
    if (cubin && cubin->compiler <= newest && (!best || best->compiler < cubin->compiler)) best = std::move(cubin);
  }
  return best;
}

bool DiskCache::write(const Cubin& cubin) const {
  return folder_.write(name_of(cubin.key, cubin.compiler), pack(cubin));
}

// One byte of one file stands for a key. The lock is of the open file, not of the process, so that threads and stores
// of one process exclude each other too, and it ends with the process.
DiskCache::Claim::Claim(const DiskCache& cache, const Hash128& key)
    : byte_(static_cast<int64_t>(key.low & 0x3FFFFFFFFFFFFFFF)) {
  if (!cache.folder().problem().empty()) return;
  file_ = ::open((cache.folder().path() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
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
