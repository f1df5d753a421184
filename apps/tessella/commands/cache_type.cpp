#include "commands/cache_type.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "commands/random_case.hpp"
#include "files/element_type.hpp"
#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

constexpr int64_t kPattern = 33554393;  // random elements, repeated; a prime, so that no row of two caches is the same

constexpr CacheType kTypes[] = {
    {TESSELLA_F64, "f64", 64, 0xff, false},
    {TESSELLA_F32, "f32", 32, 0xff, false},
    {TESSELLA_BF16, "bf16", 16, 0xff, false},
    {TESSELLA_F16, "f16", 16, 0xff, false},
    {TESSELLA_F8E4M3FN, "f8e4m3fn", 8, 0xff, true},
    {TESSELLA_I8, "i8", 8, 0x7f, true},
    {TESSELLA_I4, "i4", 4, 0x77, true},
};

// The deviation of stored numbers: of the whole numbers hardly any lies beyond the range, which cuts it off.
float deviation_of(const CacheType& type) { return type.dtype == TESSELLA_I4 ? 2.F : 32.F; }

int integer_of(float value, int most) {
  return static_cast<int>(std::clamp(std::nearbyint(value), static_cast<float>(-most), static_cast<float>(most)));
}

// Elements idx and, of 4 bits, idx + 1.
std::byte quantized_byte(const CacheType& type, const float* values) {
  std::byte byte{};
  switch (type.dtype) {
    case TESSELLA_F8E4M3FN: store_element(&byte, type.dtype, 0, values[0]); return byte;
    case TESSELLA_I8: return static_cast<std::byte>(integer_of(values[0], 127));
    default: return static_cast<std::byte>((integer_of(values[0], 7) & 15) | (integer_of(values[1], 7) & 15) << 4);
  }
}

}  // namespace

const CacheType& cache_type_named(std::string_view name) {
  const auto* type = std::ranges::find_if(kTypes, [&](const CacheType& row) { return row.name == short_name(name); });
  if (type == std::end(kTypes)) {
    std::string names;
    for (const CacheType& row : kTypes) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    throw InputError(fmt::format("--kv-dtype is '{}', expected some of {}", name, names));
  }
  return *type;
}

const CacheType& cache_type_of(tessella_dtype dtype) {
  const auto* type = std::ranges::find_if(kTypes, [&](const CacheType& row) { return row.dtype == dtype; });
  if (type == std::end(kTypes)) {
    throw InputError(fmt::format("dtype is {}, expected f64, f32, bf16 or f16", dtype_name(dtype)));
  }
  return *type;
}

ScaleOf scale_of_named(std::string_view what, std::string_view name) {
  const auto* found = std::ranges::find(kScaleNames.begin() + 1, kScaleNames.end(), name);
  if (found == kScaleNames.end()) {
    throw InputError(fmt::format("{} is '{}', expected some of tensor, head, token", what, name));
  }
  return static_cast<ScaleOf>(found - kScaleNames.begin());
}

Array allocate_keys(const CacheType& type, int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t shape[] = {1, rows, heads, head_dim};
  if (type.bits != 4) return allocate_array("keys", type.dtype, shape);
  const int64_t bytes[] = {1, rows, heads, head_dim / 2};
  Array keys = allocate_array("keys", TESSELLA_U8, bytes);
  keys.tensor.dtype = type.dtype;
  keys.tensor.shape[3] = head_dim;
  for (int axis = 0; axis < 3; ++axis) keys.tensor.strides[axis] *= 2;
  return keys;
}

std::vector<std::byte> random_elements(const CacheType& type, int64_t count, std::mt19937_64& random) {
  const int64_t shape[] = {count};
  Array numbers = allocate_array("random numbers", type.is_quantized ? TESSELLA_F32 : type.dtype, shape);
  fill_normal(numbers, random);
  std::vector<std::byte> bytes(static_cast<size_t>(count * type.bits / 8));
  if (!type.is_quantized) {
    std::memcpy(bytes.data(), numbers.tensor.data, bytes.size());
    return bytes;
  }
  auto* values = static_cast<float*>(numbers.tensor.data);
  for (int64_t i = 0; i < count; ++i) values[i] *= deviation_of(type);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = quantized_byte(type, values + i * 8 / static_cast<size_t>(type.bits));
  return bytes;
}

void fill_random(const Memory& memory, const CacheType& type, size_t bytes, std::mt19937_64& random) {
  const auto elements = static_cast<int64_t>(bytes) * 8 / type.bits;
  // Of 4 bits an even number, so that it is whole bytes.
  const std::vector<std::byte> pattern =
      random_elements(type, std::min(type.bits == 4 ? 2 * kPattern : kPattern, elements), random);
  memory.write(0, pattern.data(), pattern.size());
  memory.repeat(pattern.size(), bytes);
}

std::vector<float> random_scales(const CacheType& type, size_t count, std::mt19937_64& random) {
  std::vector<float> scales(count);
  for (float& scale : scales) {
    scale = std::exp2(static_cast<float>(random() % 2049) / 1024 - 1) / deviation_of(type);
  }
  return scales;
}

}  // namespace tessella::cli
