// Measures which kernel of linear is the fastest for how many rows.
#pragma once

#include "core/backend.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// As tessella_tune() says. Throws Error(invalid_argument, unsupported, out_of_memory, io).
void tune(const tessella_tune_options* options, const core::Progress& progress);

}  // namespace tessella::api
