// Arrays by the names that files use for them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/listed_array.hpp"

namespace tessella::cli {

// "a.q, b.k": for messages; of many, how many others there are. An array without a name is shown by its file.
std::string names_of(std::span<const ListedArray> arrays);

// Whether the file gave the array a name that says what it is: not .npy, and not arr_0, which numpy.savez makes up.
bool has_own_name(const ListedArray& array);

// Whether one of `words` is in the name, without case: whole, or between signs as "." and "_".
bool has_word(std::string_view name, std::span<const std::string_view> words);

// The array called exactly like the first of `words`; else the one whose name, or the end of it behind a dot or a
// slash, is one of them without case; null where there is none. InputError where there are several.
ListedArray* find_named(std::span<ListedArray> arrays, std::span<const std::string_view> words);

}  // namespace tessella::cli
