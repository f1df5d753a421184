#include "cases/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

namespace tessella::tests {

Memory::Memory(size_t bytes, Placement placement) : size_(bytes) {
  if (placement == Placement::aligned) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    if (data_ == nullptr) throw std::bad_alloc();
    return;
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (bytes + page - 1) / page * page;
  mapped_bytes_ = used + page;
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped_);
  if (mprotect(begin + used, page, PROT_NONE) != 0) throw std::bad_alloc();
  data_ = placement == Placement::guarded ? begin + used - bytes : begin;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

Memory::~Memory() {
  if (mapped_ != nullptr) {
    munmap(mapped_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace tessella::tests
