// Hugging Face's .safetensors: length of the header, header (JSON), elements.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/array.hpp"

namespace tessella::cli {

// In the header's order, zero copy where the elements are aligned. A tensor of a type that the library lacks is
// listed without a dtype.
std::vector<Array> read_safetensors(const std::string& source, std::span<const std::byte> bytes,
                                    const std::shared_ptr<const void>& storage);

std::vector<std::byte> to_safetensors(std::span<const Array> arrays);

}  // namespace tessella::cli
