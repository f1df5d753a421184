#include "files/listed_array.hpp"

#include <fmt/core.h>

#include "files/input_error.hpp"

namespace tessella::cli {

Array ListedArray::read(const ArrayCheck& check) const {
  Array array = load(*this, check);
  array.file = file;
  return array;
}

void admit(const Array& described, const ArrayCheck& check) {
  if (check) check(described);
  if (described.element_bytes > 0) return;
  throw InputError(fmt::format("{}: elements are {}, expected numbers such as <f4, <i8 or |b1", described.source,
                               described.file_type));
}

}  // namespace tessella::cli
