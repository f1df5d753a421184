// A call on a kernel wherever it runs: on a GPU, over twins of the call's tensors.
#pragma once

#include <gtest/gtest.h>

#include <tessella/attention.hpp>

#include "cases/gpu_twin.hpp"
#include "cases/kernels.hpp"
#include "operations/attention/shape.hpp"

namespace tessella::tests {

// As which a kernel takes any number of queries.
inline QueryClass query_class_of(const KernelInfo& kernel) {
  return kernel.is_for_few() ? QueryClass::few : QueryClass::automatic;
}

inline void run_on(const KernelInfo& kernel, const ForwardArgs& args, const AttentionOptions& options) {
  if (!kernel.is_on_gpu()) return forward(args, options);
  const detail::ForwardCall call(args, options);
  GpuTwin twin(blocks_of(call.args), false);
  const tessella_forward_args on_gpu = twin.args(call.args, true);
  detail::check(tessella_forward(&on_gpu, &call.options, twin.stream()));
  EXPECT_EQ(twin.download(), "");
}

}  // namespace tessella::tests
