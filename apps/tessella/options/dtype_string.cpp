#include "options/dtype_string.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

constexpr tessella_dtype kFloats[] = {TESSELLA_F64, TESSELLA_F32,      TESSELLA_BF16,
                                      TESSELLA_F16, TESSELLA_F8E4M3FN, TESSELLA_F8E5M2};

}  // namespace

tessella_dtype parse_float_dtype(std::string_view what, std::string_view name) {
  const ElementType* type = find_element_type_by_name(name);
  if (type != nullptr && std::ranges::find(kFloats, type->dtype) != std::end(kFloats)) return type->dtype;
  throw InputError(fmt::format("{} is '{}', expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2", what, name));
}

tessella_dtype parse_dtype(std::string_view what, std::string_view name) {
  const ElementType* type = find_element_type_by_name(name);
  if (type != nullptr) return type->dtype;
  std::string names;
  for (tessella_dtype dtype = TESSELLA_F64; dtype <= TESSELLA_F8E5M2; ++dtype) {
    const ElementType* known = find_element_type(dtype);
    if (known != nullptr) names += fmt::format("{}{}", names.empty() ? "" : ", ", known->name);
  }
  throw InputError(fmt::format("{} is '{}', expected one of {}", what, name, names));
}

}  // namespace tessella::cli
