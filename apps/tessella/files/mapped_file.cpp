#include "files/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

class Descriptor {
 public:
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw InputError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

}  // namespace

SharedBytes map_file(const std::string& path) {
  const Descriptor file(path);
  if (file.get() < 0) fail(path, "cannot open");
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot stat");
  if (S_ISDIR(status.st_mode)) throw InputError(fmt::format("{}: is a folder, expected a file", path));
  if (!S_ISREG(status.st_mode)) throw InputError(fmt::format("{}: is no regular file, which can be mapped", path));
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return {};  // nothing to map; the readers say what is missing
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail(path, "cannot map");
  return {{static_cast<const std::byte*>(data), size},
          std::shared_ptr<const void>(data, [size](void* memory) { ::munmap(memory, size); })};
}

}  // namespace tessella::cli
