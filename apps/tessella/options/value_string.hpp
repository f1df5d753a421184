// Values of an option that may be written out or lie in a file.
#pragma once

#include <string>

#include "files/array.hpp"

namespace tessella::cli {

// "1,2,3" as dtype, or the array of FILE[:NAME] converted to it; DEFAULT takes files alone, as they are. Errors begin
// with `what`, the option's name.
Array read_values(const std::string& what, const std::string& string, tessella_dtype dtype);

}  // namespace tessella::cli
