// A caller's struct grown to ours.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.hpp"
#include "core/message.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

// Members that an older struct lacks get their defaults. Throws Error(unsupported) if a newer struct sets a field that
// this library does not know.
template <typename Struct>
Struct grow(const Struct* given, const Struct& defaults, const char* function, const char* name) {
  if (given == nullptr) invalid(message(function, ": ", name, " is NULL, expected a pointer"));
  const size_t size = given->struct_size;
  if (size < sizeof(size_t) || size > 65536 || size % alignof(Struct) != 0) {
    invalid(
        message(function, ": ", name, "->struct_size is ", size, ", expected sizeof of the struct (use its _INIT)"));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      unsupported(message(function, ": ", name, " sets a field at byte ", i, " that version ", TESSELLA_VERSION_MAJOR,
                          ".", TESSELLA_VERSION_MINOR, ".", TESSELLA_VERSION_PATCH,
                          " of the library does not know (it knows ", sizeof(Struct), " bytes)"));
    }
  }
  Struct grown = defaults;
  std::memcpy(&grown, given, std::min(size, sizeof(Struct)));
  grown.struct_size = sizeof(Struct);
  return grown;
}

}  // namespace tessella::core
