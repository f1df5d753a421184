// The arrays that a file lists. Elements are read when an array is taken, so the others cost nothing and may be of any
// type.
#pragma once

#include <functional>
#include <string>

#include "files/array.hpp"

namespace tessella::cli {

// Sees an array as its file describes it, before its elements are read. InputError for one that is not wanted.
using ArrayCheck = std::function<void(const Array&)>;

struct ListedArray {
  std::string source;  // the file, and the array's name in it: for messages
  std::string name;    // "" where the file gives none
  std::string file = {};
  std::function<Array(const ListedArray&, const ArrayCheck&)> load = {};

  Array read(const ArrayCheck& check = {}) const;
};

// For loaders, before elements are read: asks the check, and refuses elements that nothing here can use.
void admit(const Array& described, const ArrayCheck& check);

}  // namespace tessella::cli
