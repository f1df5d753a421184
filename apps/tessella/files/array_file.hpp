// Files of arrays, by what is in them when reading and by their extension when writing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "files/listed_array.hpp"

namespace tessella::cli {

// Every array of a .npy, .npz or .safetensors file, by their names. Of several with one name none can be read.
std::vector<ListedArray> list_array_file(const std::string& path);

// The one array of "FILE", or the one called NAME of "FILE:NAME".
Array read_one_array(const std::string& where, const ArrayCheck& check = {});

// Throws what can be known before anything is computed: an unknown extension, more than the one array that "out.npy"
// takes, a folder that is not there, no permission. Touches nothing.
void check_writable(const std::string& path, size_t num_arrays);
// By name or by what the names lead to.
bool is_same_file(const std::string& a, const std::string& b);
void write_array_file(const std::string& path, std::span<const Array> arrays);

}  // namespace tessella::cli
