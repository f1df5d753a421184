// A whole file, mapped read-only.
#pragma once

#include <string>

#include "files/shared_bytes.hpp"

namespace tessella::cli {

SharedBytes map_file(const std::string& path);

}  // namespace tessella::cli
