// The JSON in front of a .safetensors file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// What it says of one tensor, JSON types checked.
struct SafetensorsEntry {
  std::string source;  // "FILE:NAME", for messages
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes of the data
  uint64_t end = 0;
};

// Tensors in the header's order. InputError "<path>...: ..." where it is no such header.
std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path, std::string_view string);

}  // namespace tessella::cli
