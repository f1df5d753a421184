// Memory of the tests' tensors.
#pragma once

#include <cstddef>
#include <utility>

namespace tessella::tests {

enum class Placement {
  aligned,   // 64-byte aligned
  guarded,   // ends where an unreadable page begins: a read past the tensor is a fault
  reserved,  // address space whose pages cost nothing until they are touched
};

class Memory {
 public:
  Memory() = default;
  Memory(size_t bytes, Placement placement);
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;  // null: from the heap
  size_t mapped_bytes_ = 0;
};

}  // namespace tessella::tests
