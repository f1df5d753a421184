// The host side of the CUDA backend on a driver that only remembers: contexts, loading, launches, and what is said when
// something is wrong. Each test is a child process.
#include "fake_driver.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cases/arguments.hpp"
#include "child.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/launch/loaded_kernel.hpp"
#include "cuda/launch/run.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/forward_params.hpp"
#include "toy/toy_recipe.hpp"

namespace {

using namespace tessella::cuda;
using tessella::core::Device;
using tessella::core::DeviceType;
using tessella::core::Error;
using tessella::core::ErrorCode;
using tessella::tests::in_child;
using tessella::tests::skip_without_nvrtc;

template <typename Fn>
std::string error_of(ErrorCode code, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

constexpr const char* kSource = R"(#pragma once
struct Params { int32_t* to; int64_t count; };
template <int N> __global__ void fill(const Params params) { params.to[threadIdx.x] = N; }
)";
Program trial() { return {.header = "user.hpp", .expression = "fill<7>", .user_source = kSource}; }

class FakeDriverTest : public testing::Test {
 protected:
  void SetUp() override { ::setenv("TESSELLA_CACHE_DIR", folder_.c_str(), 1); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "tessella-fake-" + std::to_string(::getpid());
};

TEST_F(FakeDriverTest, IsOpened) {
  in_child({}, [] {
    ASSERT_NE(driver(), nullptr);
    EXPECT_EQ(driver_problem(), "");
    EXPECT_EQ(driver_version(), 13000);
    EXPECT_EQ(device_count(), 2);
    const DeviceInfo& device = device_info(1);
    EXPECT_EQ(device.id, 1);
    EXPECT_EQ(device.name, "Fake GPU");
    EXPECT_EQ(device.arch, 90);
    EXPECT_EQ(device.shared_bytes_per_block, 232448);
    EXPECT_EQ(device.memory_bytes, int64_t{80} << 30);
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { device_info(2); }),
              "device_id is 2, expected 0 to 1: this process sees 2 GPUs");
  });
}

TEST_F(FakeDriverTest, TooOldIsSaid) {
  in_child({{"FAKE_CUDA_VERSION", "11040"}}, [] {
    EXPECT_EQ(driver(), nullptr);
    EXPECT_EQ(driver_problem(), driver_version_problem(11040));
    EXPECT_EQ(error_of(ErrorCode::device, [] { required_driver(); }), driver_problem());
  });
}

TEST_F(FakeDriverTest, NoGpuIsSaid) {
  in_child({{"FAKE_CUDA_INIT", "100"}}, [] {
    EXPECT_EQ(driver(), nullptr);
    EXPECT_EQ(driver_problem(), "the NVIDIA driver finds no GPU that this process may use (CUDA_VISIBLE_DEVICES?)");
    EXPECT_EQ(driver_version(), 13000) << "the compiler is chosen by it";
  });
  in_child({{"FAKE_CUDA_INIT", "999"}},
           [] { EXPECT_EQ(driver_problem(), "the NVIDIA driver does not start: cuInit returned error 999"); });
}

TEST_F(FakeDriverTest, GpuTooOldIsSaid) {
  in_child({{"FAKE_CUDA_ARCH", "75"}}, [] {
    EXPECT_EQ(error_of(ErrorCode::unsupported, [] { load(trial(), 0, 0); }),
              "GPU 0 (Fake GPU) has compute capability 7.5 (sm_75), expected 8.0 (sm_80, Ampere) or newer");
  });
}

TEST_F(FakeDriverTest, MemoryExhaustedNamesTheNeed) {
  in_child({{"FAKE_CUDA_ALLOC", "2"}}, [] {
    const CurrentDevice current(1);
    CUdeviceptr data = 0;
    EXPECT_EQ(error_of(ErrorCode::out_of_memory,
                       [&] { check_allocation(driver()->cuMemAllocAsync(&data, 4096, nullptr), "forward", 4096); }),
              "forward: needs 4096 bytes on GPU 1, which has 1000 bytes free of 80000");
  });
}

TEST_F(FakeDriverTest, CallersContextIsRespected) {
  in_child({}, [] {
    const auto current = [] {
      CUcontext context = nullptr;
      driver()->cuCtxGetCurrent(&context);
      return context;
    };
    ASSERT_NE(driver(), nullptr);
    EXPECT_EQ(current(), nullptr);
    for (int i = 0; i < 2; ++i) {
      const CurrentDevice device(1);
      EXPECT_NE(current(), nullptr);
      EXPECT_NE(current(), fake_own_context(1));
    }
    EXPECT_EQ(current(), nullptr);
    EXPECT_EQ(fake_driver()->num_retained, 1) << "the primary context, once";

    driver()->cuCtxPushCurrent(fake_own_context(0));
    {
      const CurrentDevice same(0);
      EXPECT_EQ(current(), fake_own_context(0));
      {
        const CurrentDevice other(1);
        EXPECT_NE(current(), fake_own_context(0));
      }
      EXPECT_EQ(current(), fake_own_context(0));
    }
    EXPECT_EQ(current(), fake_own_context(0));
    EXPECT_EQ(fake_driver()->num_retained, 1);
  });
}

TEST_F(FakeDriverTest, PointersAreAskedFor) {
  in_child({}, [] {
    const void* on_gpu = reinterpret_cast<void*>(0x1001);
    EXPECT_TRUE(driver_is_loaded());
    EXPECT_FALSE(device_of(on_gpu)) << "nobody has initialised CUDA";
    ASSERT_NE(driver(), nullptr);
    EXPECT_EQ(device_of(on_gpu), (Device{DeviceType::cuda, 1}));
    EXPECT_FALSE(device_of(reinterpret_cast<void*>(0x1000)));
  });
}

TEST_F(FakeDriverTest, KernelIsLoadedOnceAndLaunched) {
  in_child({}, [] {
    skip_without_nvrtc();
    const auto kernel = load(trial(), 1, 100000);
    EXPECT_EQ(load(trial(), 1, 100000), kernel);
    EXPECT_NE(load(trial(), 0, 0), kernel);
    const FakeDriver& fake = *fake_driver();
    EXPECT_EQ(fake.num_loaded, 2);
    EXPECT_EQ(fake.num_function_loads, 2) << "nothing is left to the first launch";
    EXPECT_EQ(fake.max_shared_bytes[1], 100000);
    EXPECT_EQ(fake.max_shared_bytes[0], 0);

    const CurrentDevice current(1);
    const FakeParams params{reinterpret_cast<int32_t*>(0x1001), 5};
    void* stream = reinterpret_cast<void*>(0x77);
    kernel->launch({.grid = {3, 2, 1}, .threads = 128}, params, stream);
    EXPECT_EQ(fake.launched_on, 1);
    EXPECT_EQ(fake.params.to, params.to);
    EXPECT_EQ(fake.params.count, 5);
    EXPECT_EQ(fake.config.gridDimX, 3u);
    EXPECT_EQ(fake.config.gridDimY, 2u);
    EXPECT_EQ(fake.config.gridDimZ, 1u);
    EXPECT_EQ(fake.config.blockDimX, 128u);
    EXPECT_EQ(fake.config.sharedMemBytes, 100000u);
    EXPECT_EQ(static_cast<void*>(fake.config.hStream), stream);
    EXPECT_TRUE(fake.attributes.empty());

    kernel->launch({.grid = {4, 1, 1}, .threads = 128, .cluster = 2, .is_dependent = true}, params, stream);
    ASSERT_EQ(fake.attributes.size(), 2u);
    EXPECT_EQ(fake.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    EXPECT_EQ(fake.attributes[0].value.clusterDim.x, 2u);
    EXPECT_EQ(fake.attributes[1].value.programmaticStreamSerializationAllowed, 1);

    EXPECT_NE(error_of(ErrorCode::internal, [&] { kernel->launch({}, 1.0, stream); }).find("16 bytes of parameters"),
              std::string::npos);
    EXPECT_NE(error_of(ErrorCode::internal, [] { load(trial(), 0, 300000); }).find("has 232448"), std::string::npos);
  });
}

constexpr KernelRow kToy = {.name = "cuda.toy",
                            .summary = "attention to at most one key",
                            .dtypes = dtype_bit(tessella::core::DType::f32),
                            .max_head_dim = 64,
                            .recipe = tessella::tests::toy_recipe};

// Chosen, prepared and run as any kernel of the table.
TEST_F(FakeDriverTest, StepsOfARecipeAreQueuedInTurn) {
  in_child({{"FAKE_CUDA_PARAMS", std::to_string(sizeof(tessella::portable::ForwardParams)).c_str()}}, [] {
    skip_without_nvrtc();
    using tessella::core::choose;
    const tessella::core::Kernel table[] = {kernel<kToy>()};
    const tessella::core::KernelTable tables[] = {table};
    tessella::core::AttentionArguments p = tessella::tests::gpu_arguments(
        {.batch = 2, .heads_q = 3, .heads_kv = 3, .seqlen_q = 5, .seqlen_kv = 2, .head_dim_qk = 40, .head_dim_v = 40},
        tessella::core::DType::f32);
    p.device.id = 1;
    const std::string reason = error_of(ErrorCode::unsupported, [&] { choose(p, tables, {}, "toy"); });
    EXPECT_NE(reason.find("cuda.toy: sees one key"), std::string::npos) << reason;
    p.seqlen_kv = 1;
    tessella::core::Plan plan = choose(p, tables, {}, "toy");
    EXPECT_NE(plan.explanation.find("two steps, compiled when planned"), std::string::npos) << plan.explanation;
    plan.prepared = plan.kernel->prepare(plan);
    FakeDriver& fake = *fake_driver();
    plan.kernel->run(&p, plan, {}, nullptr);
    ASSERT_EQ(fake.launches.size(), 2u);
    EXPECT_EQ(fake.launched_on, 1);
    EXPECT_EQ(fake.launches[0].numAttrs, 0u);
    for (const CUlaunchConfig& launch : fake.launches) {
      EXPECT_EQ(launch.gridDimX, 5u);
      EXPECT_EQ(launch.gridDimY, 3u);
      EXPECT_EQ(launch.gridDimZ, 2u);
      EXPECT_EQ(launch.blockDimX, 32u);
    }
    ASSERT_EQ(fake.attributes.size(), 1u);
    EXPECT_EQ(fake.attributes[0].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    p.seqlen_kv = 0;
    plan.kernel->run(&p, plan, {}, nullptr);
    EXPECT_EQ(fake.launches.size(), 3u) << "the second step has nothing to add";
    EXPECT_TRUE(fake.attributes.empty());
  });
}

int g_num_refused = 0, g_num_taken = 0;
constexpr KernelRow kRefused = {.name = "cuda.refused",
                                .dtypes = dtype_bit(tessella::core::DType::f32),
                                .max_head_dim = 64,
                                .recipe = [](const tessella::core::Shape&, const DeviceInfo&) {
                                  ++g_num_refused;
                                  return Recipe{.ineligible = "takes nothing"};
                                }};
constexpr KernelRow kTaken = {.name = "cuda.taken",
                              .dtypes = dtype_bit(tessella::core::DType::f32),
                              .max_head_dim = 64,
                              .recipe = [](const tessella::core::Shape& bounds, const DeviceInfo& device) {
                                ++g_num_taken;
                                return tessella::tests::toy_recipe(bounds, device);
                              }};

// By kernels that the call passes over, and by the one that is chosen, explained, prepared and run.
TEST_F(FakeDriverTest, RecipesAreMadeOnceForAPlan) {
  in_child({{"FAKE_CUDA_PARAMS", std::to_string(sizeof(tessella::portable::ForwardParams)).c_str()}}, [] {
    skip_without_nvrtc();
    const tessella::core::Kernel table[] = {kernel<kRefused>(), kernel<kTaken>()};
    const tessella::core::KernelTable tables[] = {table};
    const tessella::core::AttentionArguments p = tessella::tests::gpu_arguments(
        {.seqlen_q = 5, .seqlen_kv = 1, .head_dim_qk = 40, .head_dim_v = 40}, tessella::core::DType::f32);
    tessella::core::Plan plan = tessella::core::choose(p, tables, {}, "toy");
    EXPECT_EQ(plan.kernel->name, "cuda.taken");
    plan.prepared = plan.kernel->prepare(plan);
    plan.kernel->run(&p, plan, {}, nullptr);
    EXPECT_EQ(fake_driver()->launches.size(), 2u);
    EXPECT_EQ(g_num_refused, 1);
    EXPECT_EQ(g_num_taken, 1);
  });
}

TEST_F(FakeDriverTest, ImageThatTheDriverDoesNotLoadIsExplained) {
  in_child({{"FAKE_CUDA_LOAD", "209"}}, [] {
    skip_without_nvrtc();
    const std::string message = error_of(ErrorCode::device, [] { load(trial(), 0, 0); });
    EXPECT_NE(message.find("does not load a kernel of NVRTC"), std::string::npos) << message;
    EXPECT_NE(message.find("sm_90 on GPU 0 (Fake GPU, sm_90), expected a newer driver"), std::string::npos) << message;
  });
}

TEST_F(FakeDriverTest, TheCompilerIsChosenWithoutInitialisingCuda) {
  in_child({}, [] {
    nvrtc();
    in_child({}, [] { EXPECT_NE(driver(), nullptr); });
  });
}

TEST_F(FakeDriverTest, NvrtcIsNoNewerThanTheDriver) {
  in_child({{"FAKE_CUDA_VERSION", "12080"}}, [] {
    if (nvrtc() != nullptr) {
      EXPECT_EQ(nvrtc()->version().major, 12);
    } else {
      EXPECT_NE(nvrtc_problem().find("expected version 12:"), std::string::npos) << nvrtc_problem();
    }
  });
}

TEST_F(FakeDriverTest, ForkAfterUseIsExplained) {
  in_child({}, [] {
    const CurrentDevice current(0);
    in_child({}, [] {
      const std::string message = error_of(ErrorCode::device, [] { CurrentDevice in_forked(0); });
      EXPECT_NE(message.find("forked after its parent used CUDA"), std::string::npos) << message;
    });
  });
}

}  // namespace
