// Element types: the library's dtypes under the names that users and files give them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessella/tessella.h"

namespace tessella::cli {

struct ElementType {
  tessella_dtype dtype;
  int64_t bytes;
  const char* name;         // on the command line and in tables
  const char* numpy;        // .npy's descr; bf16 and f8 are raw to numpy
  const char* safetensors;  // the header's dtype
};

// "f32" of "float32": what tables show of a dtype that NumPy or PyTorch names; any other name as it is.
std::string_view short_name(std::string_view name);

// Null if no element type has that name, short or long.
const ElementType* find_element_type(tessella_dtype dtype);
const ElementType* find_element_type_by_name(std::string_view name);
const ElementType* find_element_type_by_numpy(std::string_view kind);  // descr without its byte order
const ElementType* find_element_type_by_safetensors(std::string_view name);

std::string dtype_name(tessella_dtype dtype);

bool is_float(tessella_dtype dtype);   // f64, f32, bf16 or f16
bool is_float8(tessella_dtype dtype);  // f8e4m3fn or f8e5m2

// Elements first, first + stride, ... as doubles.
void load_elements(const void* data, tessella_dtype dtype, int64_t first, int64_t stride, int64_t count,
                   double* values);
// One element as a double, and a float stored as one element of a float type, rounded to nearest even; fp8 saturates.
double load_element(const void* data, tessella_dtype dtype, int64_t idx);
void store_element(void* data, tessella_dtype dtype, int64_t idx, float value);

}  // namespace tessella::cli
