#include "cuda/kernels.hpp"

#include <array>

#include "cuda/forward_sm80.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() {
  static const std::array kKernels = {forward_sm80()};
  return kKernels;
}

}  // namespace tessella::cuda
