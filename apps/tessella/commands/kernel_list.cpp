#include "commands/kernel_list.hpp"

#include <fmt/core.h>

#include "files/input_error.hpp"

namespace tessella::cli {

std::vector<KernelEntry> list_kernels() {
  std::vector<KernelEntry> kernels;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    KernelEntry& kernel = kernels.emplace_back();
    kernel.idx = idx;
    check(tessella_kernel_describe(idx, &kernel.info));
  }
  return kernels;
}

std::vector<KernelEntry> kernels_of(std::string_view operation) {
  std::vector<KernelEntry> kernels = list_kernels();
  std::erase_if(kernels, [&](const KernelEntry& kernel) { return kernel.info.operation != operation; });
  return kernels;
}

std::string ineligible(const KernelEntry& kernel, const tessella_call* call) {
  const char* reason = "";
  check(tessella_kernel_refusal(kernel.idx, call, &reason));
  return reason;
}

KernelEntry kernel_named(std::string_view what, const std::string& name, std::string_view operation) {
  std::string names;
  for (const KernelEntry& kernel : kernels_of(operation)) {
    if (name == kernel.info.name) return kernel;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel.info.name);
  }
  throw InputError(fmt::format("{} is '{}', expected one of {}", what, name, names));
}

}  // namespace tessella::cli
