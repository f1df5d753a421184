// Loading and launching on a GPU: results, stream capture, contexts, whose memory a pointer is. Skipped where there is
// no GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/compile/find_cubin.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/launch/loaded_kernel.hpp"

namespace {

using namespace tessella::cuda;
using tessella::core::Device;
using tessella::core::DeviceType;

struct Params {
  int32_t* to;
  int32_t add;
};
constexpr const char* kSource = R"(#pragma once
namespace trial {
struct Config { int factor; };
struct Params { int32_t* to; int32_t add; };
template <Config C> __global__ void count(const Params params) {
  extern __shared__ int32_t s_values[];
  s_values[threadIdx.x] = C.factor * (blockIdx.x * blockDim.x + threadIdx.x);
  __syncthreads();
  params.to[blockIdx.x * blockDim.x + threadIdx.x] += s_values[threadIdx.x] + params.add;
}
}
)";
Program trial(int factor) {
  return {.header = "user.hpp",
          .expression = "trial::count<trial::Config{.factor = " + std::to_string(factor) + "}>",
          .user_source = kSource};
}

constexpr int kBlocks = 4;
constexpr int kThreads = 64;
constexpr int kShared = 100 << 10;  // beyond the 48 KB that need no asking
constexpr Blocks kLaunch{.grid = {kBlocks, 1, 1}, .threads = kThreads};

// Functions of the driver that only tests use.
template <typename... Arguments>
CUresult call(const char* name, Arguments... arguments) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto function = reinterpret_cast<CUresult (*)(Arguments...)>(::dlsym(library, name));
  return function == nullptr ? static_cast<CUresult>(500) : function(arguments...);
}

class GpuLaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (driver() == nullptr) GTEST_SKIP() << driver_problem();
    if (nvrtc_is_missing()) GTEST_SKIP() << "no NVRTC here";
    current_ = std::make_unique<CurrentDevice>(0);
    check(cu().cuMemAlloc(&data_, kBlocks * kThreads * sizeof(int32_t)), "cuMemAlloc");
    check(cu().cuMemsetD8Async(data_, 0, kBlocks * kThreads * sizeof(int32_t), nullptr), "cuMemsetD8Async");
    check(cu().cuStreamCreate(&stream_, 1), "cuStreamCreate");
  }
  void TearDown() override {
    if (data_ != 0) cu().cuMemFree(data_);
    if (stream_ != nullptr) cu().cuStreamDestroy(stream_);
  }
  static bool nvrtc_is_missing() {
    try {
      find_or_compile(trial(1), device_info(0).arch);
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  static const Driver& cu() { return *driver(); }
  Params params(int add) const { return {reinterpret_cast<int32_t*>(data_), add}; }
  std::vector<int32_t> result() const {
    std::vector<int32_t> values(kBlocks * kThreads);
    check(cu().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    check(cu().cuMemcpyDtoH(values.data(), data_, values.size() * sizeof(int32_t)), "cuMemcpyDtoH");
    return values;
  }
  static std::vector<int32_t> expected(int factor, int add) {
    std::vector<int32_t> values(kBlocks * kThreads);
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor * static_cast<int>(i) + add;
    return values;
  }

  std::unique_ptr<CurrentDevice> current_;
  CUdeviceptr data_ = 0;
  CUstream stream_ = nullptr;
};

TEST_F(GpuLaunchTest, Runs) {
  const auto kernel = load(trial(3), 0, kShared);
  kernel->launch(kLaunch, params(5), stream_);
  EXPECT_EQ(result(), expected(3, 5));
  EXPECT_EQ(load(trial(3), 0, kShared), kernel);
}

TEST_F(GpuLaunchTest, FirstLaunchMayBeCaptured) {
  const auto kernel = load(trial(4), 0, kShared);
  ASSERT_EQ(call("cuStreamBeginCapture_v2", stream_, 0), CUDA_SUCCESS);  // global: what is unsafe is an error
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(cu().cuStreamIsCapturing(stream_, &status), "cuStreamIsCapturing");
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  kernel->launch(kLaunch, params(1), stream_);
  kernel->launch(kLaunch, params(2), stream_);
  void* graph = nullptr;
  void* executable = nullptr;
  ASSERT_EQ(call("cuStreamEndCapture", stream_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(call("cuGraphInstantiateWithFlags", &executable, graph, 0ull), CUDA_SUCCESS);
  EXPECT_EQ(result(), expected(0, 0)) << "captured, not run";
  ASSERT_EQ(call("cuGraphLaunch", executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(result(), expected(8, 3));
  call("cuGraphExecDestroy", executable);
  call("cuGraphDestroy", graph);
}

TEST_F(GpuLaunchTest, DependentLaunchesRun) {
  const auto kernel = load(trial(1), 0, kShared);
  Blocks blocks = kLaunch;
  blocks.is_dependent = device_info(0).arch >= 90;
  blocks.cluster = device_info(0).arch >= 90 ? 2 : 1;
  for (int i = 0; i < 3; ++i) kernel->launch(blocks, params(1), stream_);
  EXPECT_EQ(result(), expected(3, 3));
}

TEST_F(GpuLaunchTest, RunsInTheCallersOwnContext) {
  current_.reset();
  CUcontext own = nullptr;
  // cuCtxCreate's form of CUDA 11; later drivers keep it
  ASSERT_EQ(call("cuCtxCreate_v2", &own, 0u, 0), CUDA_SUCCESS);  // and makes it current
  {
    const auto kernel = load(trial(6), 0, kShared);
    const CurrentDevice current(0);
    CUcontext context = nullptr;
    check(cu().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    EXPECT_EQ(context, own);
    CUdeviceptr data = 0;
    check(cu().cuMemAlloc(&data, kBlocks * kThreads * sizeof(int32_t)), "cuMemAlloc");
    check(cu().cuMemsetD8Async(data, 0, kBlocks * kThreads * sizeof(int32_t), nullptr), "cuMemsetD8Async");
    kernel->launch(kLaunch, Params{reinterpret_cast<int32_t*>(data), 7}, nullptr);
    std::vector<int32_t> values(kBlocks * kThreads);
    check(cu().cuMemcpyDtoH(values.data(), data, values.size() * sizeof(int32_t)), "cuMemcpyDtoH");
    EXPECT_EQ(values, expected(6, 7));
    check(cu().cuMemFree(data), "cuMemFree");
  }
  call("cuCtxDestroy_v2", own);
  current_ = std::make_unique<CurrentDevice>(0);  // TearDown frees in the primary one
}

TEST_F(GpuLaunchTest, EveryDeviceRunsFromAThreadWithoutContext) {
  current_.reset();
  for (int id = 0; id < device_count(); ++id) {
    const auto kernel = load(trial(2), id, kShared);
    EXPECT_EQ(kernel->device_id(), id);
    const CurrentDevice current(id);
    CUdeviceptr data = 0;
    check(cu().cuMemAlloc(&data, kBlocks * kThreads * sizeof(int32_t)), "cuMemAlloc");
    EXPECT_EQ(device_of(reinterpret_cast<void*>(data)), (Device{DeviceType::cuda, id}));
    kernel->launch(kLaunch, Params{reinterpret_cast<int32_t*>(data), 0}, nullptr);
    check(cu().cuCtxSynchronize(), "cuCtxSynchronize");
    check(cu().cuMemFree(data), "cuMemFree");
  }
  current_ = std::make_unique<CurrentDevice>(0);
}

TEST_F(GpuLaunchTest, PointersBelongWhereTheirMemoryIs) {
  const Device gpu{DeviceType::cuda, 0};
  EXPECT_EQ(device_of(reinterpret_cast<void*>(data_)), gpu);
  EXPECT_EQ(device_of(reinterpret_cast<void*>(data_ + 4)), gpu);
  int on_stack = 0;
  EXPECT_FALSE(device_of(&on_stack));
  const std::unique_ptr<void, decltype(&std::free)> heap(std::aligned_alloc(4096, 8192), std::free);
  EXPECT_FALSE(device_of(heap.get()));
  ASSERT_EQ(call("cuMemHostRegister_v2", heap.get(), size_t{8192}, 0u), CUDA_SUCCESS);
  EXPECT_FALSE(device_of(heap.get())) << "registered host memory is the host's";
  call("cuMemHostUnregister", heap.get());
  void* pinned = nullptr;
  ASSERT_EQ(call("cuMemAllocHost_v2", &pinned, size_t{4096}), CUDA_SUCCESS);
  EXPECT_FALSE(device_of(pinned));
  call("cuMemFreeHost", pinned);
  CUdeviceptr managed = 0;
  if (call("cuMemAllocManaged", &managed, size_t{4096}, 1u) == CUDA_SUCCESS) {
    EXPECT_EQ(device_of(reinterpret_cast<void*>(managed)), gpu);
    cu().cuMemFree(managed);
  }
  CUdeviceptr from_pool = 0;
  check(cu().cuMemAllocAsync(&from_pool, 4096, stream_), "cuMemAllocAsync");
  EXPECT_EQ(device_of(reinterpret_cast<void*>(from_pool)), gpu);
  check(cu().cuMemFreeAsync(from_pool, stream_), "cuMemFreeAsync");
}

TEST_F(GpuLaunchTest, MemoryExhaustedNamesTheNeed) {
  CUdeviceptr data = 0;
  const size_t bytes = size_t{1} << 50;
  try {
    check_allocation(cu().cuMemAlloc(&data, bytes), "forward", bytes);
    FAIL() << "allocated a petabyte";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("needs 1125899906842624 bytes on GPU 0"), std::string::npos)
        << error.what();
  }
}

}  // namespace
