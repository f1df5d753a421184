#include "cuda/compile/disk_cache.hpp"

#include <dirent.h>

#include <memory>

#include "core/message.hpp"

namespace tessella::cuda {
namespace {

using core::message;

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

DiskCache::Claim::Claim(const DiskCache& cache, const Hash128& key)
    : claim_(cache.folder(), static_cast<int64_t>(key.low & 0x3FFFFFFFFFFFFFFF)) {}

}  // namespace tessella::cuda
