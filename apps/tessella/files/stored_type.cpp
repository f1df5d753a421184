#include "files/stored_type.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cstring>
#include <limits>

#include "files/element_type.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

template <typename From, typename To>
void widen(const std::string& source, const void* from, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, static_cast<const std::byte*>(from) + i * static_cast<int64_t>(sizeof value), sizeof value);
    if constexpr (sizeof(From) == sizeof(To)) {
      if (value > From{std::numeric_limits<To>::max()}) {
        throw InputError(fmt::format("{}: element {} is {}, expected one that fits i64", source, i, value));
      }
    }
    static_cast<To*>(to)[i] = static_cast<To>(value);
  }
}

// Integers that the library lacks, and the one that holds their values.
struct Integer {
  std::string_view numpy;
  std::string_view safetensors;
  int64_t bytes;
  tessella_dtype dtype;
  StoredType::Widen widen;
};
constexpr Integer kIntegers[] = {
    {"i2", "I16", 2, TESSELLA_I32, widen<int16_t, int32_t>},
    {"u2", "U16", 2, TESSELLA_I32, widen<uint16_t, int32_t>},
    {"u4", "U32", 4, TESSELLA_I64, widen<uint32_t, int64_t>},
    {"u8", "U64", 8, TESSELLA_I64, widen<uint64_t, int64_t>},
};

// The type that a file calls `name`, as one of the library's or an integer that it lacks.
void find_type(std::string_view name, const ElementType* known, std::string_view Integer::*own_name, StoredType& type) {
  if (known != nullptr) {
    type.bytes = known->bytes;
    type.dtype = known->dtype;
  }
  for (const Integer& integer : kIntegers) {
    if (name != integer.*own_name) continue;
    type.bytes = integer.bytes;
    type.dtype = integer.dtype;
    type.widen = integer.widen;
  }
}

}  // namespace

StoredType stored_type_of_numpy(std::string_view descr) {
  StoredType type{.name = shown_name(descr)};
  std::string_view kind = descr;
  if (!kind.empty() && std::string_view("<>|=").find(kind[0]) != std::string_view::npos) kind.remove_prefix(1);
  find_type(kind, find_element_type_by_numpy(kind), &Integer::numpy, type);
  if (kind.starts_with('V') || kind == "f1") {  // numpy's names for the types of ml_dtypes
    constexpr int64_t kMost = 1 << 20;
    int64_t bytes = 0;
    const auto [end, error] = std::from_chars(kind.data() + 1, kind.data() + kind.size(), bytes);
    if (error == std::errc() && end == kind.data() + kind.size() && bytes > 0 && bytes <= kMost) type.bytes = bytes;
  }
  type.is_big_endian = descr.starts_with('>') && type.dtype != TESSELLA_DTYPE_DEFAULT && type.bytes > 1;
  return type;
}

StoredType stored_type_of_safetensors(std::string_view dtype) {
  StoredType type{.name = shown_name(dtype)};
  find_type(dtype, find_element_type_by_safetensors(dtype), &Integer::safetensors, type);
  return type;
}

}  // namespace tessella::cli
