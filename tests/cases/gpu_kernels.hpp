// Suites of what only a GPU has: each of its kernels by name, skipped with the reason where there is none.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cases/kernels.hpp"
#include "device/gpu.hpp"
#include "tessella/error.hpp"

namespace tessella::tests {

// Why this process has no GPU, or "".
inline std::string gpu_arguments() {
  try {
    cli::Gpu::open(0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

inline std::vector<KernelInfo> gpu_kernels(const std::string& operation = "forward") {
  std::vector<KernelInfo> kernels;
  for (const KernelInfo& kernel : kernels_of(operation)) {
    if (kernel.is_on_gpu()) kernels.push_back(kernel);
  }
  return kernels;
}

}  // namespace tessella::tests
