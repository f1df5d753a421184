// A whole file, mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tessella::cli {

struct MappedFile {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> storage;  // unmaps
};

MappedFile map_file(const std::string& path);

}  // namespace tessella::cli
