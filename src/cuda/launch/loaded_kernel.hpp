// A kernel in a GPU's memory, ready to be launched.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "cuda/compile/cubin.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/driver/driver.hpp"

namespace tessella::cuda {

// The blocks of a launch.
struct Blocks {
  unsigned grid[3] = {1, 1, 1};
  unsigned threads = 1;       // of each
  unsigned cluster = 1;       // blocks of a cluster, along the grid's first axis
  bool is_dependent = false;  // may start before the kernel before it ends (programmatic stream serialisation)
};

class LoadedKernel {
 public:
  LoadedKernel(std::shared_ptr<const Cubin> cubin, int device_id, int dynamic_shared_bytes);

  // Queues it. Legal while the stream is captured. The device's context must be current (CurrentDevice).
  // params: the kernel's only parameter, by value.
  void launch(const Blocks& blocks, const void* params, size_t params_bytes, void* stream) const;
  template <typename Params>
  void launch(const Blocks& blocks, const Params& params, void* stream) const {
    static_assert(std::is_trivially_copyable_v<Params>, "copied to the GPU as it is");
    launch(blocks, &params, sizeof params, stream);
  }

  int device_id() const { return device_id_; }
  const Cubin& cubin() const { return *cubin_; }

 private:
  std::shared_ptr<const Cubin> cubin_;
  int device_id_ = 0;
  int dynamic_shared_bytes_ = 0;
  size_t params_bytes_ = 0;  // 0: the driver is too old to say
  CUkernel kernel_ = nullptr;
};

// Finds or compiles the program, loads it on the device and lets it use so much dynamic shared memory. Kept for the
// life of the process, for captured graphs may hold a kernel longer than any plan does; a repeated call is a lookup.
std::shared_ptr<const LoadedKernel> load(const Program& program, int device_id, int dynamic_shared_bytes);

}  // namespace tessella::cuda
