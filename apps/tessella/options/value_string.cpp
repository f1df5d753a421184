#include "options/value_string.hpp"

#include <fmt/format.h>

#include "files/array_file.hpp"
#include "files/input_error.hpp"
#include "options/number_string.hpp"

namespace tessella::cli {

Array read_values(const std::string& what, const std::string& string, tessella_dtype dtype) {
  const bool takes_numbers = dtype != TESSELLA_DTYPE_DEFAULT;
  if (takes_numbers && is_number_list(string)) return array_of_numbers(what, dtype, parse_numbers(what, string));
  if (string.empty()) {
    throw InputError(fmt::format("{} is '', expected {}FILE[:NAME]", what, takes_numbers ? "numbers 1,2,3 or " : ""));
  }
  try {
    Array array = read_one_array(string);
    return takes_numbers ? converted(array, dtype) : array;
  } catch (const MemoryError&) {
    throw;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", what, error.what()));
  }
}

}  // namespace tessella::cli
