// The kernels of the library by name, for suites that run on each of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tessella/tessella.h"

namespace tessella::tests {

struct KernelInfo {
  std::string name;
  std::string operation;
  std::string dtypes;
  std::string unavailable;
  std::string device;
  int64_t max_head_dim = 0;
  bool is_on_gpu() const { return device == "cuda"; }
  // Those of the CPU that take many queries where a call says that they are few.
  bool is_for_few() const { return name.starts_with("cpu.decode"); }
  bool is_reference() const { return name.starts_with("reference."); }
  // Hopper's kernels leave rows that the copy engine does not read to the one behind them.
  bool takes_every_row() const { return name != "cuda.forward_sm90" && name != "cuda.forward_f8_sm90"; }
  // out of 8 bits, and amax
  bool writes_float8() const { return name != "cuda.forward_f8_sm90"; }
  bool computes(const std::string& dtype) const {  // whole words: "bf16" is no "f16"
    return (" " + dtypes + " ").find(" " + dtype + " ") != std::string::npos;
  }
};
inline void PrintTo(const KernelInfo& kernel, std::ostream* stream) { *stream << kernel.name; }

// Those that compute the operation: "forward", "backward", "merge", "append", "copy_pages", each any of its calls.
// "decode": those of forward on a GPU that are for few queries alone; "float8": those for tensors of 8 bits alone.
inline std::vector<KernelInfo> kernels_of(const std::string& operation) {
  std::vector<KernelInfo> kernels;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) != TESSELLA_OK) continue;
    const std::string_view name = info.name;
    const bool is_float8 = name == "cuda.forward_widened" || name == "cuda.forward_f8_sm90";
    const char* of = name.starts_with("cuda.decode") ? "decode" : is_float8 ? "float8" : info.operation;
    if (of != operation) continue;
    kernels.push_back({info.name, info.operation, info.dtypes, info.unavailable, info.device, info.max_head_dim});
  }
  return kernels;
}

// Those that have approximations of their own, which the reference's have not.
inline std::vector<KernelInfo> fast_kernels() {
  std::vector<KernelInfo> kernels = kernels_of("forward");
  std::erase_if(kernels, [](const KernelInfo& kernel) { return kernel.is_reference(); });
  return kernels;
}

// A suite of tests that skip where their kernel cannot run, saying why.
class EachKernel : public testing::TestWithParam<KernelInfo> {
 protected:
  void SetUp() override {
    if (!GetParam().unavailable.empty()) GTEST_SKIP() << GetParam().unavailable;
  }
};

inline std::string kernel_test_name(const testing::TestParamInfo<KernelInfo>& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

}  // namespace tessella::tests
