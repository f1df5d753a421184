// What a generated file of instances is made of: kernels by their names, each with what runs it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words. block_sm90.cuh has Element from score.cuh.
#include "cuda/device/score/score.cuh"
#include "cuda/launch/recipe.hpp"
#include "emulator.hpp"

namespace tessella::tests {

using RunInstance = void (*)(const cuda::Step& step, const cuda::Launch& launch, uint64_t seed);
struct Instance {
  const char* expression;
  RunInstance run;
};
bool add_instances(std::initializer_list<Instance> some);

template <class Params>
void run_instance(void (*kernel)(Params), const cuda::Step& step, const cuda::Launch& launch, uint64_t seed) {
  if (launch.parameters.bytes() != sizeof(Params)) throw std::logic_error("takes other parameters");
  const auto& params = *static_cast<const Params*>(launch.parameters.data());
  const auto& [x, y, z] = launch.grid;
  // Blocks that wait for others run in pairs, as those of a cluster do. Pairs start in any order: what a block works on
  // is decided when it starts, so it waits for none that comes behind it.
  const unsigned together = step.blocks_wait && x % 2 == 0 ? 2 : step.cluster;
  emulator::launch(
      {x, y, z}, step.threads, static_cast<size_t>(step.shared_bytes), seed, [&] { kernel(params); }, together);
}

}  // namespace tessella::tests
