#include "cuda/kernels.hpp"

#include <array>

#include "cuda/forward_sm80.hpp"
#include "cuda/forward_sm90.hpp"
#include "cuda/ladder.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() {
  static const std::array kKernels = {forward_sm90(), forward_sm80(), ladder_standard(), ladder_flash_1()};
  return kKernels;
}

}  // namespace tessella::cuda
