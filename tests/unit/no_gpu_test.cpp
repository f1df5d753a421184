// What the CUDA backend says where it cannot run: one sentence that names the need.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/launch/loaded_kernel.hpp"

namespace {

using namespace tessella::cuda;
using tessella::core::Error;
using tessella::core::ErrorCode;

template <typename Fn>
std::string error_of(ErrorCode code, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(NoGpu, OldDriverIsToldWhatItNeeds) {
  EXPECT_EQ(driver_version_problem(11040),
            "the NVIDIA driver supports CUDA 11.4, expected CUDA 12.0 or newer: a driver of branch 525 or later");
  EXPECT_EQ(driver_version_problem(12000), "");
  EXPECT_EQ(driver_version_problem(13000), "");
}

TEST(NoGpu, OldGpuIsToldWhatItNeeds) {
  EXPECT_EQ(device_problem({.id = 1, .name = "Tesla T4", .arch = 75}),
            "GPU 1 (Tesla T4) has compute capability 7.5 (sm_75), expected 8.0 (sm_80, Ampere) or newer");
  EXPECT_EQ(device_problem({.id = 0, .name = "NVIDIA A100", .arch = 80}), "");
  EXPECT_EQ(device_problem({.id = 0, .name = "NVIDIA H200", .arch = 90}), "");
}

TEST(NoGpu, SaysWhyThereIsNone) {
  if (driver() != nullptr) GTEST_SKIP() << "there is a GPU here";
  EXPECT_NE(driver_problem(), "");
  if (driver_version() == 0) {
    EXPECT_EQ(driver_problem(), "no NVIDIA driver here: libcuda.so.1 was not found");
  }
  EXPECT_EQ(device_count(), 0);
  EXPECT_EQ(error_of(ErrorCode::device, [] { device_info(0); }), driver_problem());
  EXPECT_EQ(error_of(ErrorCode::device, [] { required_driver(); }), driver_problem());
  EXPECT_EQ(error_of(ErrorCode::device, [] { CurrentDevice current(0); }), driver_problem());
  EXPECT_EQ(error_of(ErrorCode::device, [] { load({.header = "user.hpp"}, 0, 0); }), driver_problem());
}

TEST(NoGpu, PointersAreTheHosts) {
  int on_stack = 0;
  if (driver_version() == 0) {
    EXPECT_FALSE(driver_is_loaded());
  }
  EXPECT_FALSE(device_of(&on_stack));
  EXPECT_FALSE(device_of(nullptr));
}

TEST(NoGpu, FailuresOfTheDriverAreTyped) {
  const std::string message = error_of(ErrorCode::device, [] { check(static_cast<CUresult>(700), "forward"); });
  EXPECT_EQ(message.substr(0, 9), "forward: ");
  EXPECT_EQ(error_of(ErrorCode::out_of_memory, [] { check(CUDA_ERROR_OUT_OF_MEMORY, "forward"); }).substr(0, 9),
            "forward: ");
  EXPECT_NE(error_of(ErrorCode::device, [] { check(CUDA_ERROR_NOT_INITIALIZED, "forward"); }).find("forked"),
            std::string::npos);
  EXPECT_NO_THROW(check(CUDA_SUCCESS, "forward"));
}

TEST(FindCubin, TakesCubinsOfTheSameMajor) {
  const auto names = [](int arch, bool arch_specific) {
    std::string message;
    for (const Target& target : native_targets(arch, arch_specific)) message += target.name() + " ";
    return message;
  };
  EXPECT_EQ(names(90, false), "sm_90 ");
  EXPECT_EQ(names(90, true), "sm_90a ");
  EXPECT_EQ(names(89, false), "sm_89 sm_88 sm_87 sm_86 sm_85 sm_84 sm_83 sm_82 sm_81 sm_80 ");
}

TEST(FindCubin, AnOlderCompilerDoesWhatItCan) {
  const std::vector<int> old_archs{75, 80, 86, 89, 90};
  const auto name = [&](int arch, bool arch_specific, const std::vector<int>& archs) {
    const std::optional<Target> target = compile_target(arch, arch_specific, archs);
    return target ? target->name() : "none";
  };
  EXPECT_EQ(name(90, false, old_archs), "sm_90");
  EXPECT_EQ(name(90, true, old_archs), "sm_90a");
  EXPECT_EQ(name(87, false, old_archs), "sm_86");        // the same major runs it
  EXPECT_EQ(name(120, false, old_archs), "compute_90");  // another does not; the driver compiles PTX
  EXPECT_EQ(name(100, true, old_archs), "none");
  EXPECT_EQ(name(120, false, {}), "sm_120");
}

}  // namespace
