// Values of an option that may be written out or lie in a file.
#pragma once

#include <initializer_list>
#include <string>

#include "options/call.hpp"

namespace tessella::cli {

// "1,2,3" as f32 or i32, or the array of FILE[:NAME] converted to `dtype`. bool takes files alone; so does DEFAULT,
// which is a bias's: that of the call's q, or f32. Errors begin with `what`, the option's name.
Array read_values(std::string_view what, const std::string& string, tessella_dtype dtype, const Call& call);

// The array of FILE[:NAME], converted to the first of the dtypes unless it is of one of them.
Array read_as(std::string_view what, const std::string& file, const Call& call,
              std::initializer_list<tessella_dtype> dtypes);

}  // namespace tessella::cli
