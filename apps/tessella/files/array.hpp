// An array out of a file or of the command line: a view, what keeps its memory alive, and where it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/element_type.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

struct Array {
  std::string source;     // the file, and the array's name in it: for messages
  std::string name;       // "" where the file gives none
  std::string file_type;  // the element type in the file's own words
  int64_t element_bytes = 0;
  tessella_tensor tensor = {};  // dtype TESSELLA_DTYPE_DEFAULT where the file's type is none of the library's
  std::shared_ptr<const void> storage;
  std::string file = {};  // its path; "" of one that is from none
};

// Elements of a shape; InputError "<source>: ..." if an extent is negative, there are more than 8 axes, or the bytes
// would not fit the address space.
int64_t checked_num_elements(const std::string& source, std::span<const int64_t> shape, int64_t element_bytes);
int64_t num_elements(const tessella_tensor& tensor);

// A view of row-major (or, reversed, column-major) elements inside `bytes`; copied where they are not aligned.
Array make_array(std::string source, std::string name, std::string file_type, const ElementType* type,
                 int64_t element_bytes, std::span<const int64_t> shape, bool column_major,
                 std::span<const std::byte> bytes, std::shared_ptr<const void> storage);

// Zeroed, dense, aligned to a page.
Array allocate_array(std::string name, tessella_dtype dtype, std::span<const int64_t> shape);

// A one-dimensional array of i32, i64 or f32.
Array array_of_numbers(std::string name, tessella_dtype dtype, std::span<const double> numbers);

// Gives an array of raw elements its type; any other must already be of it.
void resolve_dtype(Array& array, tessella_dtype dtype);

// Takes bytes, as uint8 or raw ones, for elements of 8 or 4 bits; any other must already be of that type.
void resolve_cache_dtype(Array& array, tessella_dtype dtype);

// The same values as dense `dtype`; those that do not fit are an InputError.
Array converted(const Array& array, tessella_dtype dtype);

// "(1, 512, 12, 32)"
std::string shape_string(const tessella_tensor& tensor);

// Index in elements of the i-th element in row-major order.
int64_t element_index(const tessella_tensor& tensor, int64_t i);

}  // namespace tessella::cli
