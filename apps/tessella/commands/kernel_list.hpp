// The library's kernels as it describes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options/call.hpp"

namespace tessella::cli {

struct KernelEntry {
  int32_t idx = 0;
  tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
};

std::vector<KernelEntry> list_kernels();
// Those that compute the operation, "forward", "backward", "merge" ...
std::vector<KernelEntry> kernels_of(std::string_view operation);

// "" if the kernel would run this call.
std::string ineligible(const KernelEntry& kernel, const tessella_call* call);
inline std::string ineligible(const KernelEntry& kernel, const Call& call) { return ineligible(kernel, Tagged(call)); }

// The operation's kernel of that name; InputError that lists the names otherwise.
KernelEntry kernel_named(std::string_view what, const std::string& name, std::string_view operation);

}  // namespace tessella::cli
