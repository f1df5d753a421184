#include "api/info.hpp"

#include <map>

#include "api/backends.hpp"
#include "core/environment.hpp"
#include "core/message.hpp"
#include "cpu/parallel.hpp"
#include "process/once.hpp"
#include "tessella/tessella.h"

namespace tessella::api {
namespace {

KernelStrings make_strings(const core::Kernel& kernel) {
  KernelStrings strings{.name = std::string(kernel.name),
                        .summary = std::string(kernel.summary),
                        .architectures = std::string(kernel.architectures),
                        .dtypes = {},
                        .automatic = {},
                        .features = {},
                        .unavailable = kernel.unavailable == nullptr ? "" : kernel.unavailable({kernel.device, 0})};
  if (strings.unavailable.empty() && kernel.missing != nullptr) strings.unavailable = kernel.missing();
  const auto append = [](std::string& list, const char* word) {
    if (!list.empty()) list += ' ';
    list += word;
  };
  for (int32_t value = 1; value <= static_cast<int32_t>(core::kLastDType); ++value) {
    const auto dtype = static_cast<core::DType>(value);
    if ((kernel.dtypes & core::dtype_bit(dtype)) == 0) continue;
    append(strings.dtypes, name(dtype));
    if ((kernel.automatic & core::dtype_bit(dtype)) != 0) append(strings.automatic, name(dtype));
  }
  for (const core::FeatureName& entry : core::kFeatureNames) {
    if (kernel.features.has(entry.feature)) append(strings.features, entry.name);
  }
  return strings;
}

}  // namespace

const KernelStrings& kernel_strings(const core::Kernel& kernel) {
  const auto& strings = process::once([] {
    std::map<const core::Kernel*, KernelStrings> all;
    for (const core::KernelTable& table : kernel_tables()) {
      for (const core::Kernel& entry : table) all.emplace(&entry, make_strings(entry));
    }
    return all;
  });
  return strings.at(&kernel);
}

std::string info() {
  std::string string = core::message("version: ", TESSELLA_VERSION_MAJOR, ".", TESSELLA_VERSION_MINOR, ".",
                                     TESSELLA_VERSION_PATCH, "\nthreads: ", cpu::max_threads(), "\n");
  for (const core::KernelTable& table : kernel_tables()) {
    for (const core::Kernel& kernel : table) {
      const std::string& reason = kernel_strings(kernel).unavailable;
      string += core::message("kernel ", kernel.name, ": ", reason.empty() ? "available" : reason, "\n");
    }
  }
  const std::string_view forced = core::environment_kernel();
  if (!forced.empty()) string += core::message("TESSELLA_KERNEL: ", forced, "\n");
  for (const core::Backend* gpu : gpu_backends()) string += gpu->info_lines();
  return string;
}

}  // namespace tessella::api
