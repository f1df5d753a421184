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
  core::Operation operation = core::Operation::forward;
  std::string_view summary;
  std::string_view architectures;  // "sm_90a", "sm_80+"
  // Why such a GPU runs none of its calls, or "". Null: every GPU from Ampere on runs them.
  std::string (*unavailable)(const DeviceInfo& device) = nullptr;
  uint32_t dtypes = 0;
  int64_t max_head_dim = 0;
  core::Features features = core::kCommonFeatures | core::kModFeatures;
  uint32_t kv_dtypes = core::kSameDType;  // as core::Kernel has them
  uint32_t out_dtypes = core::kSameDType | core::dtype_bit(core::DType::f32);
  bool serves_few = false;
  bool splits_keys = false;
  uint32_t automatic = ~0u;  // bit per DType for which it may be chosen unnamed
  int64_t (*made_needed)(const core::Arguments& arguments) = nullptr;  // as core::Kernel has it
  Recipe (*recipe)(const core::Shape& bounds, const DeviceInfo& device) = nullptr;
  core::Cost (*cost)(const core::Arguments& arguments, const DeviceInfo& device) = nullptr;
};

// The functions of a core::Kernel for a row of the table. A plan has the recipe that was offered.
std::string unavailable(const KernelRow& row, core::Device device);
core::Offer offer(const KernelRow& row, const core::Shape& bounds);
std::string describe(const core::Plan& plan);
std::shared_ptr<const void> prepare(const core::Plan& plan);
void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);
void make(const core::Arguments& arguments, const core::Plan& plan, void* stream);

template <const KernelRow& row>
core::Kernel kernel() {
  return {.name = row.name,
          .operation = row.operation,
          .summary = row.summary,
          .device = core::DeviceType::cuda,
          .architectures = row.architectures,
          .dtypes = row.dtypes,
          .max_head_dim = row.max_head_dim,
          .features = row.features,
          .kv_dtypes = row.kv_dtypes,
          .out_dtypes = row.out_dtypes,
          .serves_few = row.serves_few,
          .splits_keys = row.splits_keys,
          .automatic = row.automatic,
          .unavailable = [](core::Device device) { return unavailable(row, device); },
          .offer = [](const core::Shape& bounds, int) { return offer(row, bounds); },
          .cost = row.cost == nullptr
                      ? nullptr
                      : +[](const core::Arguments& a) { return row.cost(a, device_info(core::facts(a).device.id)); },
          .describe = describe,
          .prepare = prepare,
          .made_needed = row.made_needed,
          .make = make,
          .run = run};
}

}  // namespace tessella::cuda
