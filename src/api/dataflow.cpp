#include "api/dataflow.hpp"

#include <optional>

#include "api/backends.hpp"
#include "api/plan_cache.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "cpu/cpu_features.hpp"
#include "operations/linear/shipped_dataflow.hpp"
#include "process/cache_folder.hpp"
#include "process/once.hpp"

namespace tessella::api {
namespace {

constexpr const char* kFile = "linear_dataflow.txt";

process::CacheFolder folder() { return process::CacheFolder(process::CacheFolder::default_path()); }

core::Dataflow own_dataflow() { return core::Dataflow(folder().read(kFile).value_or("")); }

}  // namespace

std::string dataflow_key(const core::LinearShape& shape) {
  const bool is_cpu = shape.device.type == core::DeviceType::cpu;
  return core::dataflow_key(shape, is_cpu ? core::message(cpu::processor_name(), " with ",
                                                          threads_of_key(shape.device, shape.num_threads), " threads")
                                          : backend_of(shape.device).device_name(shape.device.id));
}

core::PreferredKernel preferred_kernel(const core::Shape& any) {
  if (core::operation(any) != core::Operation::linear) return {};
  const core::LinearShape& shape = core::linear(any);
  if (shape.batch_invariant || shape.num_sms > 0) return {};
  const std::string key = dataflow_key(shape);
  const auto preferred = [&](const core::Dataflow& dataflow, const char* where) -> core::PreferredKernel {
    const std::optional<core::DataflowChoice> choice = dataflow.find(key, shape.rows);
    if (!choice) return {};
    return {choice->kernel, core::message("the fastest up to ", choice->rows, " rows, measured on ", where)};
  };
  core::PreferredKernel own = preferred(own_dataflow(), "this machine");
  if (!own.name.empty()) return own;
  return preferred(process::once([] { return core::Dataflow(core::shipped_dataflow()); }), "such a GPU");
}

void expect_writable_dataflow() {
  if (const std::string problem = folder().problem(); !problem.empty()) {
    throw core::Error(core::ErrorCode::io, "tune: " + problem);
  }
}

void keep_dataflow(const std::string& key, const std::vector<core::DataflowChoice>& choices) {
  constexpr int64_t kClaim = int64_t{1} << 62;  // beyond those of kernels
  const process::CacheFolder::Claim claim(folder(), kClaim);
  core::Dataflow dataflow = own_dataflow();
  dataflow.set(key, choices);
  if (folder().write(kFile, dataflow.string())) return;
  expect_writable_dataflow();
  throw core::Error(core::ErrorCode::io, core::message("tune: cannot write ", folder().path(), "/", kFile));
}

}  // namespace tessella::api
