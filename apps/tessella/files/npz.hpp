// NumPy's .npz: a zip archive of .npy files, stored (savez) or deflated (savez_compressed).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "files/listed_array.hpp"

namespace tessella::cli {

// In the archive's order. An array is inflated when it is read, and only if its header, its shape and the archive agree
// on its size.
std::vector<ListedArray> list_npz(const std::string& path, const SharedBytes& file);

void write_npz(const std::string& path, std::span<const Array> arrays);

}  // namespace tessella::cli
