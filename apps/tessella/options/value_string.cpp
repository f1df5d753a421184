#include "options/value_string.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "files/array_file.hpp"
#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "options/number_string.hpp"

namespace tessella::cli {

namespace {

Array read_converted(const std::string& file, const Call& call, std::initializer_list<tessella_dtype> dtypes) {
  tessella_dtype wanted = *dtypes.begin();
  // Before the elements are read, and once they are.
  const auto settle = [&](Array& array) {
    const bool is_raw = array.tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes > 0;
    if (is_raw && call.raw_dtype != TESSELLA_DTYPE_DEFAULT) resolve_dtype(array, call.raw_dtype);
    if (std::ranges::find(dtypes, array.tensor.dtype) != dtypes.end()) wanted = array.tensor.dtype;
    check_convertible(array, wanted);
  };
  Array array = read_one_array(file, [&](Array described) { settle(described); });
  settle(array);
  if (array.tensor.ndim == 0) {  // a scalar is one value
    array.tensor.ndim = 1;
    array.tensor.shape[0] = array.tensor.strides[0] = 1;
  }
  return converted(array, wanted);
}

}  // namespace

Array read_as(std::string_view what, const std::string& file, const Call& call,
              std::initializer_list<tessella_dtype> dtypes) {
  try {
    return read_converted(file, call, dtypes);
  } catch (const MemoryError&) {
    throw;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", what, error.what()));
  }
}

Array read_values(std::string_view what, const std::string& string, tessella_dtype dtype, const Call& call) {
  const bool takes_numbers = dtype != TESSELLA_DTYPE_DEFAULT && dtype != TESSELLA_BOOL;
  if (takes_numbers && is_number_list(string))
    return array_of_numbers(std::string(what), dtype, parse_numbers(what, string));
  if (string.empty()) {
    throw InputError(fmt::format("{} is '', expected {}FILE[:NAME]", what, takes_numbers ? "numbers 1,2,3 or " : ""));
  }
  if (dtype != TESSELLA_DTYPE_DEFAULT) return read_as(what, string, call, {dtype});
  const tessella_dtype of_q = call.args.q->dtype;
  return read_as(what, string, call, {TESSELLA_F32, is_float(of_q) ? of_q : TESSELLA_F32});
}

}  // namespace tessella::cli
