// What commands say of the arrays that they computed.
#pragma once

#include <string>

#include "files/array.hpp"
#include "report/table.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

// "min -1, max 1, mean 0, 3 NaN", of the finite elements; "all NaN".
std::string summary_string(const Array& array);

// Shape, dtype, and where it is from.
Json describe_array(const Array& array);

Json describe_check(const tessella_check_report& report);
// of: what a plain computation is, "fp32 softmax".
void print_check(const tessella_check_report& report, const char* of);
// Of a backward: which gradient it is of is said too.
void print_backward_check(const tessella_check_report& report);

}  // namespace tessella::cli
