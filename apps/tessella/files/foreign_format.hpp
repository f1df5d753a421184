// Files that are not arrays but hold them, or come in their place: what they are, and how to get arrays out of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tessella::cli {

// InputError if the bytes begin as a format that is known and not read.
void refuse_foreign_format(const std::string& path, std::span<const std::byte> bytes);

// InputError for a zip archive that has no .npy files, by what it has instead.
[[noreturn]] void refuse_archive(const std::string& path, std::span<const std::string> entries);

}  // namespace tessella::cli
