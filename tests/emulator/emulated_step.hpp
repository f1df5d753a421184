// One step of a recipe, by name. A binary of tests exists twice: the collector has no kernel and writes down those that
// its tests run, and with an instance of each, made from that list, the tests themselves are linked (instances.cmake).
#pragma once

#include <cstdint>
#include <functional>

#include "cases/append_call.hpp"
#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/linear_call.hpp"
#include "cases/merge_call.hpp"
#include "cases/quantize_call.hpp"
#include "cuda/launch/recipe.hpp"

namespace tessella::tests {

void run_step(const cuda::Step& step, const cuda::Launch& launch, uint64_t seed);
// What the kernel before still does when the next step begins (emulator.hpp).
void set_kernel_before(std::function<void()> rest);
// After the last step. The collector computes the call on the CPU, so that tests go on as they will.
void finish(Call& call);
void finish(MergeCall& call);
void finish(AppendCall& call);
void finish(CopyPagesCall& call);
void finish(QuantizeCall& call);
void finish_back(QuantizeCall& call);  // of dequantize
void finish(BackwardCall& call);
void finish(LinearCall& call);

}  // namespace tessella::tests
