// Calls of linear small enough to be looked at whole, and the ends of the ranges of their sizes.
#pragma once

#include <cstdint>
#include <limits>

#include "cases/linear_call.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

inline constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kMostRows = 2147482623;

inline const LinearCase kPlain{.kernel = "reference.linear",
                               .bias_dtype = TESSELLA_F32,
                               .residual = true,
                               .rows = 3,
                               .in_features = 8,
                               .out_features = 6};
inline const LinearCase kStored{
    .kernel = "reference.linear", .w_dtype = TESSELLA_I8, .rows = 3, .in_features = 8, .out_features = 6};
inline const LinearCase kSwiglu{
    .kernel = "reference.linear", .residual = true, .swiglu = true, .rows = 3, .in_features = 8, .out_features = 6};
}  // namespace tessella::tests
