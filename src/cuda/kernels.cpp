#include "cuda/kernels.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() { return {}; }

}  // namespace tessella::cuda
