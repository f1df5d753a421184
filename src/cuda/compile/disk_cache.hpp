// Compiled kernels in the cache folder. An error in it costs time, never correctness.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "cuda/compile/cubin.hpp"
#include "process/cache_folder.hpp"

namespace tessella::cuda {

class DiskCache {
 public:
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}

  const process::CacheFolder& folder() const { return folder_; }

  // Nothing when there is no such file, or it is not whole, or another program's, or damaged.
  std::optional<Cubin> read(const Hash128& key, CompilerVersion compiler) const;
  // The image of the newest compiler that is not newer than `newest`.
  std::optional<Cubin> read_any(const Hash128& key, CompilerVersion newest) const;
  // Returns false, and leaves no file, if it could not be written.
  bool write(const Cubin& cubin) const;

  // Held while a program is compiled, so that processes that start together compile it once. Two that both compile it
  // do no harm.
  class Claim {
   public:
    Claim(const DiskCache& cache, const Hash128& key);

   private:
    process::CacheFolder::Claim claim_;
  };

 private:
  process::CacheFolder folder_;
};

}  // namespace tessella::cuda
