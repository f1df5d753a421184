// What a measurement ran on and with.
#pragma once

#include <cstdint>
#include <string>

#include "files/json.hpp"

namespace tessella::cli {

// tessella_info() as an object.
Json library_info();

// Threads that a call on the CPU has which asks for so many; 0: for all.
int cpu_threads(int32_t asked);

// What results are worth without: the library, the machine, the time.
Json about_run(const std::string& command);

}  // namespace tessella::cli
