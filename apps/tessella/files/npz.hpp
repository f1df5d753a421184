// NumPy's .npz: a zip archive of .npy files, stored (savez) or deflated (savez_compressed).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "files/array.hpp"

namespace tessella::cli {

// In the archive's order; each array is a copy.
std::vector<Array> read_npz(const std::string& source, std::span<const std::byte> bytes);

void write_npz(const std::string& path, std::span<const Array> arrays);

}  // namespace tessella::cli
