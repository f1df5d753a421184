#include "cuda/kernels.hpp"

#include <array>

#include "core/once.hpp"
#include "cuda/forward_sm80/recipe.hpp"
#include "cuda/forward_sm90/recipe.hpp"
#include "cuda/ladder/recipe.hpp"

namespace tessella::cuda {

core::KernelTable cuda_kernels() {
  return core::once([] { return std::array{forward_sm90(), forward_sm80(), ladder_standard(), ladder_flash_1()}; });
}

}  // namespace tessella::cuda
