// The folder where the library keeps what it has made for this machine: compiled kernels, measurements. Any number of
// processes may use it at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessella::process {

class CacheFolder {
 public:
  // Makes the folder, with mode 0700, when it is first written to.
  explicit CacheFolder(std::string path) : path_(std::move(path)) {}

  // $TESSELLA_CACHE_DIR, else $XDG_CACHE_HOME/tessella, else ~/.cache/tessella; "" without any.
  static std::string default_path();

  const std::string& path() const { return path_; }
  // Why nothing can be written here, in one sentence, or "". Makes the folder.
  std::string problem() const;
  // Why nothing in it is read, or "".
  std::string reading_problem() const;

  // The whole file of this name; nothing where there is none, it is no plain file, or nothing is read.
  std::optional<std::string> read(const std::string& name) const;
  // Others see the file before or after, never a part. Returns false, and leaves no file, if it could not be written.
  bool write(const std::string& name, std::string_view bytes) const;

  // One thread of one process at a time has a number's claim. Waiting for it ends after a minute: then it is had by
  // two.
  class Claim {
   public:
    Claim(const CacheFolder& folder, int64_t number);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    bool set_lock(short type) const;
    int file_ = -1;
    int64_t number_;
  };

 private:
  std::string own_problem() const;  // without the variable that names the folder

  std::string path_;
};

}  // namespace tessella::process
