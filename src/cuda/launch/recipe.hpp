// A GPU kernel as the host knows it: a recipe is a pure function of what a plan may depend on and of the GPU. Its steps
// are kernels in the order in which a run queues them. launch/run.hpp compiles, loads and queues any of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/kernel.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/launch/sections.hpp"

namespace tessella::cuda {

// A kernel's only parameter: a struct of any type, by value. Copies allocate no more than its size.
class Parameters {
 public:
  template <class T>
  requires(!std::is_same_v<T, Parameters>) explicit Parameters(const T& value) : bytes_(sizeof value) {
    static_assert(std::is_trivially_copyable_v<T>, "copied to the GPU as it is");
    static_assert(sizeof(T) <= kMostBytes && alignof(T) <= kAlignment);
    std::memcpy(data_, &value, sizeof value);
  }
  Parameters(const Parameters& other) { *this = other; }
  Parameters& operator=(const Parameters& other) {
    if (this == &other) return *this;
    bytes_ = other.bytes_;
    std::memcpy(data_, other.data_, bytes_);
    return *this;
  }

  const void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kMostBytes = 4096;  // that drivers before CUDA 12.1 take
  static constexpr size_t kAlignment = 128;
  alignas(kAlignment) std::byte data_[kMostBytes];
  size_t bytes_ = 0;
};

// How one run queues a step.
struct Launch {
  std::array<unsigned, 3> grid = {1, 1, 1};
  Parameters parameters;
};

struct Step {
  Program program;
  unsigned threads = 1;       // of a block
  unsigned cluster = 1;       // blocks of a cluster, along the grid's first axis
  int shared_bytes = 0;       // dynamic, of a block
  int blocks_per_sm = 1;      // resident at once, by the kernel's launch bounds where it has some
  bool is_dependent = false;  // may start before the step before it ends (programmatic stream serialisation)
  bool blocks_wait = false;   // for blocks that started before them

  // bounds: of the plan. arguments: of the run. at_once: this step's blocks that the GPU holds. Nothing leaves the step
  // out of the run. A run calls it each time: it must not allocate.
  std::function<std::optional<Launch>(const core::Shape& bounds, const core::Arguments& arguments,
                                      const Concurrency& at_once, const core::Workspace& workspace)>
      launch;

  // Replaces this step if the compiler keeps some of its registers in memory, which only compiling it tells.
  std::shared_ptr<const Step> if_spilled;
};

struct Recipe {
  std::string ineligible;  // why the kernel does not run such calls, or "": the rest is then empty
  std::string leaves;      // as core::Offer has it
  core::WorkspaceSize workspace;
  std::string description;  // one line: tiles, shared memory
  std::vector<Step> steps;
  // The step that makes what runs read in the caller's memory: a schedule, or the map of a mask. It is queued once for
  // many runs (design.md, section 3).
  int64_t made_bytes = 0;
  std::vector<Step> made_before;
};

// The blocks that run at once on an otherwise idle GPU; a call may ask for fewer multiprocessors.
inline Concurrency concurrency(const Step& step, const core::Shape& bounds, const DeviceInfo& device) {
  const int asked = core::facts(bounds).num_sms;
  const int num_sms = asked > 0 ? std::min(asked, device.num_sms) : device.num_sms;
  return {.blocks = int64_t{num_sms} * step.blocks_per_sm, .l2_bytes = device.l2_bytes};
}

}  // namespace tessella::cuda
