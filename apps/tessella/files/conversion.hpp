// Arrays in the types and the order that the library takes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "files/array.hpp"

namespace tessella::cli {

// A one-dimensional array of i32, i64 or f32.
Array array_of_numbers(std::string name, tessella_dtype dtype, std::span<const double> numbers);

// Gives an array of raw elements its type; any other must already be of it.
void resolve_dtype(Array& array, tessella_dtype dtype);

// Takes bytes, as uint8 or raw ones, for elements of 8 or 4 bits, as the option says; any other must already be of that
// type.
void resolve_bytes(Array& array, tessella_dtype dtype, std::string_view option);

// InputError if the elements' type has no meaning as `dtype`: floats as bool, bools as numbers, raw bytes. Looks at no
// element.
void check_convertible(const Array& array, tessella_dtype dtype);

// The same values as row-major `dtype`. InputError for those that do not fit: other than 0 and 1 as bool, not whole or
// too large as integers, beyond the range of f32, or inexact as bf16 or f16. An array that is of `dtype` stays as it
// is.
Array converted(const Array& array, tessella_dtype dtype);

// The elements in row-major order, one after the other.
void copy_row_major(const Array& array, std::byte* to);
// The array itself where its last axis is contiguous, else a copy.
Array with_contiguous_rows(const Array& array);

}  // namespace tessella::cli
