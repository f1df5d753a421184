// Names of dtypes as values of options.
#pragma once

#include <string>
#include <string_view>

#include "files/element_type.hpp"

namespace tessella::cli {

// Throws InputError "<what> is '<name>', expected ..." if it is none. Of q, or of a result: a float.
tessella_dtype parse_float_dtype(std::string_view what, std::string_view name);
// Of elements in a file.
tessella_dtype parse_dtype(std::string_view what, std::string_view name);

}  // namespace tessella::cli
