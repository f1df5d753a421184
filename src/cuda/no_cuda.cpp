// A build without the CUDA backend: an empty table, so that callers hold no #ifdef.
#include "cuda/kernels.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() { return {}; }

}  // namespace tessella::cuda
