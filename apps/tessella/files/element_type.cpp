#include "files/element_type.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

constexpr ElementType kElementTypes[] = {
    {TESSELLA_F64, 8, "f64", "<f8", "F64"},
    {TESSELLA_F32, 4, "f32", "<f4", "F32"},
    {TESSELLA_BF16, 2, "bf16", "|V2", "BF16"},
    {TESSELLA_F16, 2, "f16", "<f2", "F16"},
    {TESSELLA_BOOL, 1, "bool", "|b1", "BOOL"},
    {TESSELLA_I32, 4, "i32", "<i4", "I32"},
    {TESSELLA_I64, 8, "i64", "<i8", "I64"},
    {TESSELLA_U8, 1, "u8", "|u1", "U8"},
    {TESSELLA_I8, 1, "i8", "|i1", "I8"},
    {TESSELLA_F8E4M3FN, 1, "f8e4m3fn", "|V1", "F8_E4M3"},
    {TESSELLA_F8E5M2, 1, "f8e5m2", "|V1", "F8_E5M2"},
};

template <typename Predicate>
const ElementType* find_where(Predicate matches) {
  for (const ElementType& type : kElementTypes) {
    if (matches(type)) return &type;
  }
  return nullptr;
}

template <typename T>
T load(const void* data, int64_t idx) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + idx * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(void* data, int64_t idx, T value) {
  std::memcpy(static_cast<std::byte*>(data) + idx * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

double half_to_double(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

double float8_e4m3fn_to_double(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const double sign = bits & 0x80 ? -1 : 1;
  if ((bits & 0x7F) == 0x7F) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(mantissa + 8, exponent - 10));
}

uint16_t float_to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.f) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The grid of half around this value; nearbyint rounds to even, and a carry moves on to the next exponent.
  const int unit = std::max(exponent - 11, -24);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (unit == -24) return sign | static_cast<uint16_t>(steps);  // subnormal, or the first normal binade
  return sign | static_cast<uint16_t>(static_cast<uint32_t>(unit + 24) * 1024 + steps);
}

// least_unit: the exponent of 2 of the smallest step.
uint8_t float_to_float8(float value, int mantissa_bits, int least_unit, float largest) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7F;
  const float magnitude = std::min(std::fabs(value), largest);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - mantissa_bits - 1, least_unit);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  return static_cast<uint8_t>(sign | (((unit - least_unit) << mantissa_bits) + steps));
}

uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

std::string_view short_name(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"float64", "f64"},
      {"float32", "f32"},
      {"bfloat16", "bf16"},
      {"float16", "f16"},
      {"int32", "i32"},
      {"int64", "i64"},
      {"uint8", "u8"},
      {"int8", "i8"},
      {"int4", "i4"},
      {"float8_e4m3fn", "f8e4m3fn"},
      {"float8_e5m2", "f8e5m2"},
  };
  for (const auto& [longer, shorter] : kNames) {
    if (name == longer) return shorter;
  }
  return name;
}

const ElementType* find_element_type(tessella_dtype dtype) {
  return find_where([&](const ElementType& type) { return type.dtype == dtype; });
}
const ElementType* find_element_type_by_name(std::string_view name) {
  return find_where([&](const ElementType& type) { return type.name == short_name(name); });
}
const ElementType* find_element_type_by_numpy(std::string_view kind) {
  return find_where([&](const ElementType& type) { return !kind.starts_with('V') && type.numpy + 1 == kind; });
}
const ElementType* find_element_type_by_safetensors(std::string_view name) {
  return find_where([&](const ElementType& type) { return type.safetensors == name; });
}

std::string dtype_name(tessella_dtype dtype) {
  const ElementType* type = find_element_type(dtype);
  if (dtype == TESSELLA_I4) return "i4";  // two a byte, which files call u8
  return type ? type->name : fmt::format("dtype {}", dtype);
}

bool is_float(tessella_dtype dtype) {
  return dtype == TESSELLA_F64 || dtype == TESSELLA_F32 || dtype == TESSELLA_BF16 || dtype == TESSELLA_F16;
}

bool is_float8(tessella_dtype dtype) { return dtype == TESSELLA_F8E4M3FN || dtype == TESSELLA_F8E5M2; }

void load_elements(const void* data, tessella_dtype dtype, int64_t first, int64_t stride, int64_t count,
                   double* values) {
  const auto fill = [&]<typename T>(T, auto decode) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<double>(decode(load<T>(data, first + i * stride)));
  };
  const auto as_is = [](auto value) { return value; };
  const auto bfloat16 = [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); };
  const auto float8_e5m2 = [](uint8_t bits) { return half_to_double(static_cast<uint16_t>(bits << 8)); };
  switch (dtype) {
    case TESSELLA_F64: return fill(double{}, as_is);
    case TESSELLA_F32: return fill(float{}, as_is);
    case TESSELLA_BF16: return fill(uint16_t{}, bfloat16);
    case TESSELLA_F16: return fill(uint16_t{}, half_to_double);
    case TESSELLA_BOOL: return fill(uint8_t{}, [](uint8_t value) { return value != 0; });
    case TESSELLA_I32: return fill(int32_t{}, as_is);
    case TESSELLA_I64: return fill(int64_t{}, as_is);
    case TESSELLA_U8: return fill(uint8_t{}, as_is);
    case TESSELLA_I8: return fill(int8_t{}, as_is);
    case TESSELLA_F8E4M3FN: return fill(uint8_t{}, float8_e4m3fn_to_double);
    case TESSELLA_F8E5M2: return fill(uint8_t{}, float8_e5m2);
    default: throw InputError(fmt::format("cannot read elements of dtype {}", dtype));
  }
}

double load_element(const void* data, tessella_dtype dtype, int64_t idx) {
  double value = 0;
  load_elements(data, dtype, idx, 1, 1, &value);
  return value;
}

void store_element(void* data, tessella_dtype dtype, int64_t idx, float value) {
  switch (dtype) {
    case TESSELLA_F64: return store<double>(data, idx, value);
    case TESSELLA_F32: return store<float>(data, idx, value);
    case TESSELLA_BF16: return store<uint16_t>(data, idx, float_to_bfloat16(value));
    case TESSELLA_F16: return store<uint16_t>(data, idx, float_to_half(value));
    case TESSELLA_F8E4M3FN: return store<uint8_t>(data, idx, float_to_float8(value, 3, -9, 448));
    case TESSELLA_F8E5M2: return store<uint8_t>(data, idx, float_to_float8(value, 2, -16, 57344));
    default: throw InputError(fmt::format("dtype is {}, expected a float", dtype_name(dtype)));
  }
}

}  // namespace tessella::cli
