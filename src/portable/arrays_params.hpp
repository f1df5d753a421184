// The caller's arrays for `score_mod` and `mask_mod`, as a GPU kernel's parameters.
#pragma once

#include "portable/integers.hpp"

namespace tessella::portable {

inline constexpr int32_t kMaxArrays = 8;

struct ArrayParams {
  const void* data;
  int64_t count;
};

struct ArraysParams {
  ArrayParams all[kMaxArrays];
};

}  // namespace tessella::portable
