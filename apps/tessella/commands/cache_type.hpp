// Element types of a cache of keys and values, those of 8 and 4 bits among them, and what their scales are of.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "device/memory.hpp"
#include "files/array.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

struct CacheType {
  tessella_dtype dtype;
  const char* name;
  int bits;
  uint8_t poison;  // of every byte of a row that holds no key: NaN, or what is largest where there is none
  bool is_quantized;
};

// InputError for a type that no cache has.
const CacheType& cache_type_named(std::string_view name);
const CacheType& cache_type_of(tessella_dtype dtype);

enum class ScaleOf { none, tensor, head, token };  // token: each token and head has its own

inline constexpr std::array kScaleNames = {"none", "tensor", "head", "token"};

// tensor, head or token.
ScaleOf scale_of_named(std::string_view what, std::string_view name);

// Zeroed, dense, of (1, rows, heads, head_dim).
Array allocate_keys(const CacheType& type, int64_t rows, int64_t heads, int64_t head_dim);

// Bytes of random elements: normal numbers, those of a quantised type spread over its range.
std::vector<std::byte> random_elements(const CacheType& type, int64_t count, std::mt19937_64& random);

// The first `bytes` of memory: random elements, repeated.
void fill_random(const Memory& memory, const CacheType& type, size_t bytes, std::mt19937_64& random);

// So many scales of random_elements: times them, keys and values have deviations from 1/2 to 2.
std::vector<float> random_scales(const CacheType& type, size_t count, std::mt19937_64& random);

}  // namespace tessella::cli
