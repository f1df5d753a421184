// The folder of compiled kernels. Any number of processes may use it at once. An error in it costs time, never
// correctness.
#pragma once

#include <optional>
#include <string>

#include "cuda/compile/cubin.hpp"

namespace tessella::cuda {

class DiskCache {
 public:
  // Makes the folder, with mode 0700, when it is first written to.
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}

  // $TESSELLA_CACHE_DIR, else $XDG_CACHE_HOME/tessella, else ~/.cache/tessella; "" without any.
  static std::string default_folder();

  const std::string& folder() const { return folder_; }
  // Why nothing can be written here, in one sentence, or "". Makes the folder.
  std::string problem() const;

  // Nothing when there is no such file, or it is not whole, or another program's, or damaged.
  std::optional<Cubin> read(const Hash128& key, CompilerVersion compiler) const;
  // The image of the newest compiler that is not newer than `newest`.
  std::optional<Cubin> read_any(const Hash128& key, CompilerVersion newest) const;
  // Returns false, and leaves no file, if it could not be written.
  bool write(const Cubin& cubin) const;

  // Held while a program is compiled, so that processes that start together compile it once. Waiting for it ends
  // after a minute: then both compile, which is harmless.
  class Claim {
   public:
    Claim(const DiskCache& cache, const Hash128& key);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    bool set_lock(short type) const;
    int file_ = -1;
    int64_t byte_ = 0;
  };

 private:
  std::string own_problem() const;  // without the variable that names the folder
  std::string reading_problem() const;
  std::string path_of(const Hash128& key, CompilerVersion compiler) const;

  std::string folder_;
};

}  // namespace tessella::cuda
