#include "cuda/launch/run.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/message.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/launch/loaded_kernel.hpp"

namespace tessella::cuda {
namespace {

struct PreparedStep {
  const Step* step;  // of the plan's recipe
  std::shared_ptr<const LoadedKernel> kernel;
  Concurrency at_once;
};

// What a plan keeps beside its recipe.
struct Prepared {
  std::vector<PreparedStep> steps, made_before;
};

// The step, or what replaces it.
const Step& without_spills(const Step& step, int arch) {
  if (step.if_spilled == nullptr || find_or_compile(step.program, arch)->resources.stack_bytes == 0) return step;
  return without_spills(*step.if_spilled, arch);
}

PreparedStep prepare_step(const Step& step, const core::Shape& bounds, const DeviceInfo& device) {
  return {&step, load(step.program, device.id, step.shared_bytes), concurrency(step, bounds, device)};
}

// The origin of the step's kernel that takes longest to get.
const char* origin(const std::vector<Step>& steps, int arch) {
  Cubin::Origin slowest = Cubin::Origin::embedded;
  for (const Step& step : steps) {
    const Target target{.arch = arch, .arch_specific = step.program.arch_specific};
    slowest = std::max(slowest, origin(step.program, target));
  }
  switch (slowest) {
    case Cubin::Origin::embedded: return "embedded";
    case Cubin::Origin::disk: return "cached";
    case Cubin::Origin::compiled: break;
  }
  return "compiled when planned";
}

const DeviceInfo& device_of(const core::Shape& shape) { return device_info(core::device(shape).id); }

const Recipe& recipe_of(const core::Plan& plan) { return *static_cast<const Recipe*>(plan.recipe.get()); }

}  // namespace

std::string unavailable(const KernelRow& row, core::Device device) {
  if (std::string problem = device_problem(device.id); !problem.empty()) return problem;
  const DeviceInfo& info = device_info(device.id);
  return row.unavailable != nullptr ? row.unavailable(info) : device_problem(info);
}

core::Offer offer(const KernelRow& row, const core::Shape& bounds) {
  auto recipe = std::make_shared<const Recipe>(row.recipe(bounds, device_of(bounds)));
  return {recipe->ineligible, recipe->leaves, recipe->workspace, recipe->made_bytes, recipe};
}

std::string describe(const core::Plan& plan) {
  const Recipe& recipe = recipe_of(plan);
  if (recipe.steps.empty()) return recipe.description;
  return core::message(recipe.description, ", ", origin(recipe.steps, device_of(plan.shape).arch));
}

std::shared_ptr<const void> prepare(const core::Plan& plan) {
  const Recipe& recipe = recipe_of(plan);
  const DeviceInfo& device = device_of(plan.shape);
  auto prepared = std::make_shared<Prepared>();
  for (const auto& [steps, to] :
       {std::pair{&recipe.steps, &prepared->steps}, {&recipe.made_before, &prepared->made_before}}) {
    for (const Step& step : *steps) {
      to->push_back(prepare_step(without_spills(step, device.arch), plan.shape, device));
    }
  }
  return prepared;
}

namespace {

void queue(const std::vector<PreparedStep>& steps, const core::Arguments& arguments, const core::Plan& plan,
           const core::Workspace& workspace, void* stream) {
  const CurrentDevice current(core::device(plan.shape).id);
  for (const auto& [step, kernel, at_once] : steps) {
    const std::optional<Launch> launch = step->launch(plan.shape, arguments, at_once, workspace);
    if (!launch) continue;
    const auto& [x, y, z] = launch->grid;
    kernel->launch(
        {.grid = {x, y, z}, .threads = step->threads, .cluster = step->cluster, .is_dependent = step->is_dependent},
        launch->parameters.data(), launch->parameters.bytes(), stream);
  }
}

const Prepared& prepared(const core::Plan& plan) { return *static_cast<const Prepared*>(plan.prepared.get()); }

}  // namespace

void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream) {
  queue(prepared(plan).steps, arguments, plan, workspace, stream);
}

void make(const core::Arguments& arguments, const core::Plan& plan, void* stream) {
  queue(prepared(plan).made_before, arguments, plan, {}, stream);
}

}  // namespace tessella::cuda
