#include "emulated_step.hpp"

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "emulated_instance.hpp"

namespace tessella::tests {
namespace {

std::map<std::string, RunInstance>& instances() {
  static std::map<std::string, RunInstance> all;
  return all;
}

}  // namespace

bool add_instances(std::initializer_list<Instance> some) {
  for (const Instance& instance : some) instances().emplace(instance.expression, instance.run);
  return true;
}

void run_step(const cuda::Step& step, const cuda::Launch& launch, uint64_t seed) {
  const auto found = instances().find(step.program.expression);
  if (found == instances().end()) throw std::logic_error("was not collected: " + step.program.expression);
  found->second(step, launch, seed);
}

void set_kernel_before(std::function<void()> rest) { emulator::set_kernel_before(std::move(rest)); }

void finish(Call&) {}
void finish(MergeCall& call) { call.bring_back(); }
void finish(AppendCall&) {}
void finish(CopyPagesCall&) {}
void finish(QuantizeCall&) {}
void finish_back(QuantizeCall&) {}
void finish(BackwardCall&) {}
void finish(LinearCall&) {}

}  // namespace tessella::tests
