// Bytes in memory, and what keeps them there.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace tessella::cli {

struct SharedBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> storage;
};

}  // namespace tessella::cli
