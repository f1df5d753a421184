// The kernels of the library.
#pragma once

#include <span>

#include "core/kernel.hpp"

namespace tessella::api {

// Tables of every backend, in the order of choice.
std::span<const core::KernelTable> kernel_tables();

}  // namespace tessella::api
