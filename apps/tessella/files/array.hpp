// An array out of a file or of the command line: a view, what keeps its memory alive, and where it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/element_type.hpp"
#include "files/shared_bytes.hpp"
#include "files/stored_type.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

struct Array {
  std::string source;           // the file, and the array's name in it: for messages
  std::string name;             // "" where the file gives none
  std::string file_type;        // the element type in the file's own words
  int64_t element_bytes = 0;    // 0 of elements that nothing here can use, as strings and objects
  tessella_tensor tensor = {};  // dtype TESSELLA_DTYPE_DEFAULT where the file's type is none of the library's
  std::shared_ptr<const void> storage;
  std::string file;  // its path; "" of one that is from none

  // Out of line: many files copy arrays.
  Array();
  Array(const Array& other);
  Array(Array&& other) noexcept;
  Array& operator=(const Array& other);
  Array& operator=(Array&& other) noexcept;
  ~Array();
};

// Zeroed memory, aligned to a page, that costs nothing until it is written.
std::shared_ptr<void> allocate(int64_t bytes);

// Elements of a shape; InputError "<source>: ..." if an extent is negative, there are more than 8 axes, or the bytes
// would not fit the address space.
int64_t checked_num_elements(const std::string& source, std::span<const int64_t> shape, int64_t element_bytes);
int64_t num_elements(const tessella_tensor& tensor);

// What a file says of an array, without its elements, which are row-major or, reversed, column-major.
Array described_array(std::string source, std::string name, const StoredType& type, std::span<const int64_t> shape,
                      bool column_major);
// Gives a described array its elements: a view of the bytes where they are as the library takes them, else a copy.
void set_elements(Array& array, const StoredType& type, SharedBytes elements);

// Zeroed, dense, aligned to a page.
Array allocate_array(std::string name, tessella_dtype dtype, std::span<const int64_t> shape);

// "1, 512"
std::string extents_string(std::span<const int64_t> shape);
// "(1, 512, 12, 32)"
std::string shape_string(const tessella_tensor& tensor);

// Index in elements of the i-th element in row-major order.
int64_t element_index(const tessella_tensor& tensor, int64_t i);

}  // namespace tessella::cli
