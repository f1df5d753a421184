// linear_blas: its configuration, and its only argument.
#pragma once

#include "portable/divisor.hpp"
#include "portable/linear_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kLinearBlasThreads = 256;
inline constexpr int32_t kLinearBlasElements = 4;  // of out, that a thread loads the sums of at once

struct LinearBlasConfig {
  Element element = Element::bf16;  // of x
  bool operator==(const LinearBlasConfig&) const = default;
};

struct LinearBlasParams {
  LinearOut out;
  const float* sums;  // (rows, out_features), with SwiGLU twice as many columns; dense
  Divisor out_features;
  int32_t is_swiglu;
};

}  // namespace tessella::portable
