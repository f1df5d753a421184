// The kernel parameters that the kernels of linear share, from a call's arguments.
#pragma once

#include "operations/linear/arguments.hpp"
#include "portable/linear_params.hpp"

namespace tessella::cuda {

portable::LinearOut linear_out(const core::LinearArguments& arguments);
portable::LinearOperands linear_operands(const core::LinearArguments& arguments);

}  // namespace tessella::cuda
