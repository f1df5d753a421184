// Rows of any dtype of 32 bits or fewer as fp32 times a factor, and rows of fp32 as out holds them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace tessella::cpu {

void widen_row(const std::byte* from, core::DType dtype, int64_t count, float scale, float* into);

// from / divisor, rounded once; of fp8 within its range.
void narrow_row(const float* from, int64_t count, float divisor, core::DType dtype, std::byte* into);

}  // namespace tessella::cpu
