// NumPy's .npy, versions 1 to 3: magic, header (a Python dict literal), elements.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "files/listed_array.hpp"

namespace tessella::cli {

inline constexpr const char* kNpyMagic = "\x93NUMPY";

// Takes the next `count` bytes of what is read; no more than it has.
using TakeBytes = std::function<SharedBytes(uint64_t count)>;

// The array out of a .npy file, or an archive's entry, of `size` bytes. The header is checked before elements are
// taken, once and all of them.
Array read_npy(const ListedArray& listed, uint64_t size, const TakeBytes& take, const ArrayCheck& check);

// The one array of a file; without a copy where its elements are as the library takes them.
ListedArray list_npy(const std::string& path, SharedBytes file);

// A version 1 file of the array in row-major order. bf16 becomes raw |V2: numpy has no name for it.
std::vector<std::byte> to_npy(const Array& array);

}  // namespace tessella::cli
