// The arrays that the caller passes beside a score or mask modification, as its source reads them.
#pragma once

#include "portable/arrays_params.hpp"

namespace tessella::device {

class Arrays {
 public:
  __device__ explicit Arrays(const portable::ArraysParams& p) : arrays_(p.all) {}
  __device__ const float* f32(int n) const { return static_cast<const float*>(arrays_[n].data); }
  __device__ const int32_t* i32(int n) const { return static_cast<const int32_t*>(arrays_[n].data); }
  __device__ const bool* boolean(int n) const { return static_cast<const bool*>(arrays_[n].data); }
  __device__ int64_t count(int n) const { return arrays_[n].count; }

 private:
  const portable::ArrayParams* arrays_;
};

}  // namespace tessella::device
