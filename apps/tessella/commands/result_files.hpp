// Where `attend` and `merge` write out and lse.
#pragma once

#include <string>

#include "files/array.hpp"

namespace tessella::cli {

struct ResultFiles {
  std::string out;  // "" = not written
  std::string lse;

  // InputError if one cannot be written, or if both are one file that holds one array.
  void check_writable() const;

  // InputError if one of them is the file of an input: a result is not written over what it is computed from.
  void check_is_none(const std::string& input) const;

  // Writes what has a file.
  void write(const Array& out_array, const Array* lse_array) const;

 private:
  bool is_one_file() const { return !lse.empty() && lse == out; }
};

// Notes on stderr how bf16 is read back where the file's format has no type for it.
void note_raw(const Array& array, const std::string& path);

}  // namespace tessella::cli
