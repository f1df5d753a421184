#include "api/kernel_tables.hpp"

#include <array>

#include "cpu/kernels.hpp"
#include "cuda/kernels.hpp"
#include "process/once.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {

std::span<const core::KernelTable> kernel_tables() {
  return process::once([] {
    return std::array<core::KernelTable, 3>{cuda::cuda_kernels(), cpu::cpu_kernels(), reference::reference_kernels()};
  });
}

}  // namespace tessella::api
