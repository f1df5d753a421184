// What the stand-in for the CUDA driver remembers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver/driver_types.hpp"

struct FakeParams {
  int32_t* to;
  int64_t count;
};

struct FakeDriver {
  int calls_until_failure = -1;  // after so many calls of functions one fails, for want of memory; less than 0: none
  int num_retained = 0;
  int num_loaded = 0;
  int num_function_loads = 0;
  int max_shared_bytes[2] = {0, 0};
  int launched_on = -1;
  tessella::cuda::CUlaunchConfig config{};
  std::vector<tessella::cuda::CUlaunchAttribute> attributes;
  FakeParams params{};
  std::vector<std::byte> parameters;  // all of the last launch
  int num_allocations = 0;            // of stream-ordered memory
  int num_zeroed = 0;
  std::vector<tessella::cuda::CUlaunchConfig> launches;  // all
  struct TensorMap {
    tessella::cuda::CUtensorMapDataType type;
    uint64_t sizes[4], strides[3];  // strides in bytes
    uint32_t box[4];
  };
  std::vector<TensorMap> tensor_maps;
};

extern "C" {
FakeDriver* fake_driver();
tessella::cuda::CUcontext fake_own_context(int device);
}
