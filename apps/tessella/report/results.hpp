// What commands say of the arrays that they computed.
#pragma once

#include <string>

#include "files/array.hpp"
#include "files/json.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

// Shape, dtype, and where it is from.
Json describe_array(const Array& array);
// Of an array that was computed: where it is from is the file that it was written to, null where file is "".
Json describe_result(const Array& array, const std::string& file);
// "out     (1, 8, 2, 4) f32  min -1, max 1, mean 0, 3 NaN  -> FILE": numbers of the finite elements.
void print_result(const Array& array, const std::string& file);

Json describe_check(const tessella_check_report& report);
// of: what a plain computation is, "fp32 softmax".
void print_check(const tessella_check_report& report, const char* of);
// Of a backward: which gradient it is of is said too.
void print_backward_check(const tessella_check_report& report);

}  // namespace tessella::cli
