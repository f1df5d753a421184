// Rows of the table of GPU kernels, and the one adapter that makes the core's kernels of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cuda/launch/recipe.hpp"

namespace tessella::cuda {

struct KernelRow {
  std::string_view name;
  std::string_view summary;
  // Why such a GPU runs none of its calls, or "". Null: every GPU from Ampere on runs them.
  std::string (*unavailable)(const DeviceInfo& device) = nullptr;
  uint32_t dtypes = 0;
  int64_t max_head_dim = 0;
  core::Features features = core::all_features();
  uint32_t automatic = ~0u;  // bit per DType for which it may be chosen unnamed
  Recipe (*recipe)(const core::Problem& bounds, const DeviceInfo& device) = nullptr;
  core::Cost (*cost)(const core::Problem& problem, const DeviceInfo& device) = nullptr;
};

// What a core::Kernel has functions for, of a row.
std::string unavailable(const KernelRow& row, core::Device device);
std::string describe(const Recipe& recipe, const DeviceInfo& device);
std::shared_ptr<const void> prepare(const Recipe& recipe, const core::Problem& bounds, const DeviceInfo& device);
void run(const core::Problem& arguments, const core::Plan& plan, const core::Workspace& workspace, void* stream);

template <const KernelRow& row>
Recipe recipe(const core::Problem& bounds) {
  return row.recipe(bounds, device_info(bounds.device.id));
}

template <const KernelRow& row>
core::Kernel kernel() {
  return {.name = row.name,
          .summary = row.summary,
          .device = core::DeviceType::cuda,
          .dtypes = row.dtypes,
          .max_head_dim = row.max_head_dim,
          .features = row.features,
          .automatic = row.automatic,
          .unavailable = [](core::Device device) { return unavailable(row, device); },
          .refuses = [](const core::Problem& p) { return recipe<row>(p).refusal; },
          .workspace = [](const core::Problem& bounds, int) { return recipe<row>(bounds).workspace; },
          .cost = [](const core::Problem& p) { return row.cost(p, device_info(p.device.id)); },
          .describe = [](const core::Problem& p, int) { return describe(recipe<row>(p), device_info(p.device.id)); },
          .prepare = [](const core::Problem& p) { return prepare(recipe<row>(p), p, device_info(p.device.id)); },
          .run = [](const core::Problem& p, const core::Plan& plan, core::Workspace workspace,
                    void* stream) { run(p, plan, workspace, stream); }};
}

}  // namespace tessella::cuda
