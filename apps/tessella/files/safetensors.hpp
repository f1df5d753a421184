// Hugging Face's .safetensors: length of the header, header (JSON), elements.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "files/listed_array.hpp"

namespace tessella::cli {

// Whether the bytes begin as such a file: a length within them, and a JSON object.
bool is_safetensors(std::span<const std::byte> bytes);

// In the header's order; read without a copy where the elements are as the library takes them.
std::vector<ListedArray> list_safetensors(const std::string& path, const SharedBytes& file);

std::vector<std::byte> to_safetensors(std::span<const Array> arrays);

}  // namespace tessella::cli
