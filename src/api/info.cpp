#include "api/info.hpp"

#include <map>

#include "api/kernel_tables.hpp"
#include "core/environment.hpp"
#include "core/message.hpp"
#include "core/once.hpp"
#include "cpu/parallel.hpp"
#include "cuda/info.hpp"
#include "tessella/tessella.h"

namespace tessella::api {
namespace {

KernelTexts make_texts(const core::Kernel& kernel) {
  KernelTexts texts{.name = std::string(kernel.name),
                    .summary = std::string(kernel.summary),
                    .architectures = std::string(kernel.architectures),
                    .dtypes = {},
                    .automatic = {},
                    .features = {},
                    .unavailable = kernel.unavailable == nullptr ? "" : kernel.unavailable({kernel.device, 0})};
  const auto append = [](std::string& list, const char* word) {
    list += (list.empty() ? "" : " ") + std::string(word);
  };
  for (int32_t value = 1; value <= static_cast<int32_t>(core::kLastDType); ++value) {
    const auto dtype = static_cast<core::DType>(value);
    if ((kernel.dtypes & core::dtype_bit(dtype)) == 0) continue;
    append(texts.dtypes, name(dtype));
    if ((kernel.automatic & core::dtype_bit(dtype)) != 0) append(texts.automatic, name(dtype));
  }
  for (const core::FeatureName& entry : core::kFeatureNames) {
    if (kernel.features.has(entry.feature)) append(texts.features, entry.name);
  }
  return texts;
}

}  // namespace

const KernelTexts& kernel_texts(const core::Kernel& kernel) {
  const auto& texts = core::once([] {
    std::map<const core::Kernel*, KernelTexts> all;
    for (const core::KernelTable& table : kernel_tables()) {
      for (const core::Kernel& entry : table) all.emplace(&entry, make_texts(entry));
    }
    return all;
  });
  return texts.at(&kernel);
}

std::string info() {
  std::string text = core::message("version: ", TESSELLA_VERSION_MAJOR, ".", TESSELLA_VERSION_MINOR, ".",
                                   TESSELLA_VERSION_PATCH, "\nthreads: ", cpu::max_threads(), "\n");
  for (const core::KernelTable& table : kernel_tables()) {
    for (const core::Kernel& kernel : table) {
      const std::string& reason = kernel_texts(kernel).unavailable;
      text += core::message("kernel ", kernel.name, ": ", reason.empty() ? "available" : reason, "\n");
    }
  }
  const std::string_view forced = core::environment_kernel();
  if (!forced.empty()) text += core::message("TESSELLA_KERNEL: ", forced, "\n");
  return text + cuda::info_lines();
}

}  // namespace tessella::api
