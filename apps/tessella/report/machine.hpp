// What a measurement ran on and with.
#pragma once

#include <string>

#include "files/json.hpp"

namespace tessella::cli {

// tessella_info() as an object.
Json library_info();

// What results are worth without: the library, the machine, the time.
Json about_run(const std::string& command);

}  // namespace tessella::cli
