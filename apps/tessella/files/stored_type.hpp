// How files store the elements of an array, which is more than the library's own types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessella/tessella.h"

namespace tessella::cli {

struct StoredType {
  // Widens `count` elements; InputError "<source>: ..." for one that does not fit.
  using Widen = void (*)(const std::string& source, const void* from, int64_t count, void* to);

  std::string name;                               // in the file's own words: "<f4", "BF16"
  int64_t bytes = 0;                              // of one element; 0 where nothing here can use them
  tessella_dtype dtype = TESSELLA_DTYPE_DEFAULT;  // what they are once read; DEFAULT: raw bytes
  bool is_big_endian = false;
  Widen widen = nullptr;  // from what the library lacks to dtype
};

// Of .npy's descr: "<f4", ">i8", "|V2", "=u2". Strings, objects, records, complex numbers and times have bytes 0.
StoredType stored_type_of_numpy(std::string_view descr);
StoredType stored_type_of_safetensors(std::string_view dtype);

}  // namespace tessella::cli
