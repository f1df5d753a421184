// The oracle of linear: one element of out, in float64 for the reference and in fp32 for the plain computation.
#pragma once

#include <cstdint>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/linear/arguments.hpp"
#include "reference/check.hpp"

namespace tessella::reference {

struct LinearElement {
  double value = 0;
  double noise = 0;  // what rounding alone may change: of the sums in fp32, of what follows them, of out's dtype
};
LinearElement linear_element(const core::LinearArguments& arguments, int64_t row, int64_t column);

// The same in fp32, sums from the first product to the last, not yet rounded to the dtype of out.
float plain_linear_element(const core::LinearArguments& arguments, int64_t row, int64_t column);

void linear_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

// Like check_forward(), for linear. Of wide rows only some columns are compared, others for each row.
CheckReport check_linear(const core::LinearArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::reference
