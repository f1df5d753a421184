// The compiled configuration of linear_sm90: a pure function of the sizes of w, the rows of x and the GPU.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/linear_sm90/params.cuh"
#include "operations/linear/shape.hpp"

namespace tessella::cuda {

// Between what a configuration is chosen. Rungs of the ladder set one of them.
struct LinearSm90Limits {
  int32_t fewest_rows = 8;  // which rows of x are padded to: the fewest columns of a product
  int32_t most_stages = 12;
};

portable::LinearSm90Config linear_sm90_config(const core::LinearShape& bounds, const DeviceInfo& device,
                                              const LinearSm90Limits& limits = {});

// Tiles of so many rows of x, and the steps of one.
int64_t linear_sm90_tiles(const core::LinearShape& shape, const portable::LinearSm90Config& config);
int64_t linear_sm90_steps(const core::LinearShape& shape, const portable::LinearSm90Config& config);

Program linear_sm90_program(const portable::LinearSm90Config& config);

}  // namespace tessella::cuda
