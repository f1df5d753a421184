// NumPy's .npy, versions 1 to 3: magic, header (a Python dict literal), elements.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/array.hpp"

namespace tessella::cli {

// Zero copy where the elements are aligned. Elements of no fixed use here (objects, records, big-endian) are not read:
// the array then has element_bytes 0 and no data. `source` names the file in messages.
Array read_npy(const std::string& source, const std::string& name, std::span<const std::byte> bytes,
               std::shared_ptr<const void> storage);

// A version 1 file of the array in row-major order. bf16 becomes raw |V2: numpy has no name for it.
std::vector<std::byte> to_npy(const Array& array);

}  // namespace tessella::cli
