// What the forward kernels queue, on a driver that only remembers: grids, blocks, shared memory, the pass over tiles
// before the kernel where masks are no interval. Each test is a child process.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "api/run.hpp"
#include "cases/arguments.hpp"
#include "child.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels/classify/params.cuh"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm90/config.hpp"
#include "cuda/kernels/forward_sm90/params.cuh"
#include "cuda/kernels/ladder/config.hpp"
#include "cuda/kernels/ladder/params.cuh"
#include "fake_driver.hpp"
#include "operations/attention/arguments.hpp"
#include "planned.hpp"

namespace {

using namespace tessella;
using core::AttentionArguments;
using core::Feature;

AttentionArguments problem() {
  AttentionArguments p = tests::gpu_arguments({.batch = 2,
                                               .heads_q = 8,
                                               .heads_kv = 2,
                                               .seqlen_q = 1000,
                                               .seqlen_kv = 900,
                                               .head_dim_qk = 64,
                                               .head_dim_v = 64});
  p.device.id = 1;
  return p;
}

using tests::named;

core::Plan planned(const core::Kernel& kernel, const AttentionArguments& p) {
  return tests::planned(kernel.name, core::Shape(p));
}

unsigned tiles(int64_t rows, int32_t tile) { return static_cast<unsigned>((rows + tile - 1) / tile); }

class ForwardLaunch : public testing::Test {
 protected:
  // fn in a child where kernels take parameters of this size; passes over masks take ClassifyParams.
  template <typename Fn>
  void in_child(size_t params_bytes, Fn&& fn) {
    tests::in_child(
        {{"FAKE_CUDA_PARAMS", core::message(params_bytes, " ClassifyParams=", sizeof(portable::ClassifyParams))},
         {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}},
        [&] {
          tests::skip_without_nvrtc();
          fn();
        });
  }
};

TEST_F(ForwardLaunch, OneKernelWhereMasksAreIntervals) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    p.features = Feature::window;
    p.window_right = 0;
    const core::Kernel& kernel = named("cuda.forward_sm80");
    const core::Plan plan = planned(kernel, p);
    EXPECT_EQ(plan.workspace.scratch_bytes, 0);
    kernel.run(&p, plan, {}, reinterpret_cast<void*>(0x77));
    const portable::ForwardSm80Config config = cuda::forward_sm80_config(p, cuda::device_info(1));
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launched_on, 1);
    const cuda::CUlaunchConfig& launch = fake_driver()->launches[0];
    EXPECT_EQ(launch.gridDimX, tiles(1000, config.tile_q) * 8 * 2);
    EXPECT_EQ(launch.gridDimY, 1u);
    EXPECT_EQ(launch.blockDimX, static_cast<unsigned>(config.num_warps) * 32);
    EXPECT_EQ(launch.sharedMemBytes, static_cast<unsigned>(shared_bytes(config)));
    EXPECT_EQ(launch.hStream, reinterpret_cast<cuda::CUstream>(0x77));
    EXPECT_NE(kernel.describe(plan).find("16-byte loads"), std::string::npos) << kernel.describe(plan);
  });
}

TEST_F(ForwardLaunch, TilesAreClassifiedWhereMasksAreNot) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    p.features = Feature::mask_mod | Feature::seqlens_kv;
    p.mask_mod = "return (q ^ k) % 3 != 0;";
    const core::Kernel& kernel = named("cuda.forward_sm80");
    const core::Plan plan = planned(kernel, p);
    kernel.run(&p, plan, {}, nullptr);
    const portable::ForwardSm80Config config = cuda::forward_sm80_config(p, cuda::device_info(1));
    const unsigned map = tiles(1000, config.tile_q) * tiles(900, config.tile_kv);
    EXPECT_EQ(plan.workspace.scratch_bytes, 2 * map) << "one for each length";
    ASSERT_EQ(fake_driver()->launches.size(), 2u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 2 * map);
    EXPECT_EQ(fake_driver()->launches[0].blockDimX, portable::kClassifyWarps * 32u);
    EXPECT_EQ(fake_driver()->launches[1].gridDimX, tiles(1000, config.tile_q) * 8 * 2);
  });
}

TEST_F(ForwardLaunch, EmptyCallsQueueNothing) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    p.batch = 0;
    const core::Kernel& kernel = named("cuda.forward_sm80");
    kernel.run(&p, planned(kernel, p), {}, nullptr);
    p.batch = 2;
    p.seqlen_q = p.total_q = 0;
    kernel.run(&p, planned(kernel, p), {}, nullptr);
    EXPECT_TRUE(fake_driver()->launches.empty());
  });
}

// The sentence of a run that is an error.
std::string error_of_run(const core::Plan& plan, const AttentionArguments& p, const tessella_workspace* workspace) {
  try {
    api::run(plan, &p, workspace, nullptr, nullptr, "plan_run");
    return "";
  } catch (const core::Error& error) {
    return error.what();
  }
}

TEST_F(ForwardLaunch, ACancelledCallQueuesNothing) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    int32_t flag = 1;
    p.cancel = &flag;
    const core::Plan plan = planned(named("cuda.forward_sm80"), p);
    EXPECT_EQ(error_of_run(plan, p, nullptr), "plan_run: the call was cancelled before it began; nothing was touched");
    EXPECT_TRUE(fake_driver()->launches.empty());
    flag = 0;
    EXPECT_EQ(error_of_run(plan, p, nullptr), "");
    EXPECT_EQ(fake_driver()->launches.size(), 1u);
  });
}

// The map of a mask is made once, by 64 x 128 tiles whatever the kernel's; runs read it with a warp a tile.
TEST_F(ForwardLaunch, AMaskHasOneMap) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    p.features = Feature::mask_mod | Feature::seqlens_kv | Feature::mask_map;
    p.mask_mod = "return (q ^ k) % 3 != 0;";
    const core::Kernel& kernel = named("cuda.forward_sm80");
    const core::Plan plan = planned(kernel, p);
    const int64_t bytes = int64_t{2} * tiles(1000, 64) * tiles(900, 32) * 8;
    EXPECT_EQ(plan.made_bytes, bytes) << "one for each length";
    kernel.make(&p, plan, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 2 * tiles(1000, 64) * tiles(900, 128));
    p.mask_map_bytes = bytes - 4;
    EXPECT_EQ(error_of_run(plan, p, nullptr),
              core::message("plan_run: mask_map has ", bytes - 4, " bytes, expected at least ", bytes,
                            " for a call of these sizes"));
    p.mask_map_bytes = bytes;
    EXPECT_EQ(error_of_run(plan, p, nullptr), "");
    ASSERT_EQ(fake_driver()->launches.size(), 3u);
    EXPECT_EQ(fake_driver()->launches[1].blockDimX, 32u);
    p.features = Feature::seqlens_kv | Feature::schedule;
    EXPECT_EQ(ineligible(kernel, p), "does not support schedule");
  });
}

TEST_F(ForwardLaunch, AWorkspaceThatOverlapsQueuesNothing) {
  in_child(sizeof(portable::ForwardParams), [] {
    AttentionArguments p = problem();
    p.features = Feature::mask_mod | Feature::seqlens_kv;
    p.mask_mod = "return (q ^ k) % 3 != 0;";
    const core::Plan plan = planned(named("cuda.forward_sm80"), p);
    ASSERT_GT(plan.workspace.scratch_bytes, 0);
    p.out().data = reinterpret_cast<std::byte*>(0x10000000);  // nobody looks there
    const tessella_workspace workspace{nullptr, 0, p.out().row(1, 8, 0), 1 << 20};
    EXPECT_EQ(error_of_run(plan, p, &workspace),
              "plan_run: workspace.scratch overlaps out, expected memory of its own");
    EXPECT_TRUE(fake_driver()->launches.empty());
  });
}

// Blocks of forward_sm90 stay: one a multiprocessor at most. kNumSms: the fake GPU's.
constexpr unsigned kNumSms = 100;
constexpr size_t kAnyParams = 0;

TEST_F(ForwardLaunch, HoppersBlocksStay) {
  in_child(kAnyParams, [] {
    const core::Kernel& kernel = named("cuda.forward_sm90");
    AttentionArguments p = problem();
    p.features = Feature::dense_mask;
    std::vector<uint32_t> scratch(size_t{1} << 20);
    const core::Plan plan = planned(kernel, p);
    const core::Workspace workspace = {scratch.data(), scratch.data()};
    const portable::ForwardSm90Config config = cuda::forward_sm90_config(p);
    kernel.run(&p, plan, workspace, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 2u) << "of the tile map, and itself";
    EXPECT_EQ(fake_driver()->launches[1].gridDimX, std::min(tiles(1000, config.tile_q) * 8 * 2, kNumSms));
    EXPECT_EQ(fake_driver()->launches[1].blockDimX, static_cast<unsigned>(num_threads(config)));
    fake_driver()->launches.clear();
    p.batch = 0;
    kernel.run(&p, plan, workspace, nullptr);
    p.batch = 2;
    p.seqlen_q = p.total_q = 0;
    kernel.run(&p, plan, workspace, nullptr);
    EXPECT_TRUE(fake_driver()->launches.empty());
  });
}

TEST_F(ForwardLaunch, BoxesOfPagedKeysLieInOnePage) {
  in_child(kAnyParams, [] {
    const core::Kernel& kernel = named("cuda.forward_sm90");
    AttentionArguments p = problem();
    p.features = Feature::paged_kv;
    p.num_pages = 40;
    uint32_t counter = 0;
    for (const int64_t page_size : {8, 24, 64, 256}) {
      p.page_size = page_size;
      p.seqlen_kv = p.total_kv = 4 * page_size;
      fake_driver()->tensor_maps.clear();
      kernel.run(&p, planned(kernel, p), {&counter, nullptr}, nullptr);
      const FakeDriver::TensorMap& k = fake_driver()->tensor_maps.at(1);
      EXPECT_EQ(k.sizes[1], static_cast<uint64_t>(page_size));
      EXPECT_EQ(k.sizes[3], 40u);
      EXPECT_EQ(k.box[1], std::gcd(static_cast<uint32_t>(page_size), 128u));
    }
    p.page_size = 12;
    EXPECT_NE(ineligible(kernel, p).find("multiple of 8 rows; these have 12"), std::string::npos)
        << ineligible(kernel, p);
    p.page_size = 16;
    p.features |= Feature::leftpad_kv;
    EXPECT_NE(ineligible(kernel, p).find("leftpad_kv"), std::string::npos) << ineligible(kernel, p);
  });
}

TEST_F(ForwardLaunch, WhatAGridCannotHoldIsAnError) {
  in_child(sizeof(portable::ForwardParams), [] {
    const core::Kernel& kernel = named("cuda.forward_sm80");
    AttentionArguments p = problem();
    p.batch = 1 << 20;
    p.seqlen_q = p.total_q = 1 << 20;
    EXPECT_NE(ineligible(kernel, p).find("batch * heads_q * seqlen_q makes "), std::string::npos)
        << ineligible(kernel, p);
    p = problem();
    p.features = Feature::document;
    p.seqlen_q = p.total_q = p.seqlen_kv = p.total_kv = int64_t{1} << 28;
    EXPECT_NE(ineligible(kernel, p).find("seqlen_kv makes "), std::string::npos) << ineligible(kernel, p);
    p = problem();
    p.num_sms = 10;
    EXPECT_NE(ineligible(kernel, p).find("num_sms is 10"), std::string::npos) << ineligible(kernel, p);
    EXPECT_EQ(ineligible(kernel, problem()), "");
  });
}

// Each in turn, for want of memory: an error each time, and nothing is spoiled for later. Not those that open the
// driver, which is asked once whether it is there.
TEST_F(ForwardLaunch, EachCallOfTheDriverMayFail) {
  in_child(sizeof(portable::ForwardSm90Params), [] {
    const AttentionArguments p = problem();
    const core::Kernel& kernel = named("cuda.forward_sm90");
    uint32_t counter = 0;
    int failures = 0;
    ASSERT_NE(cuda::driver(), nullptr);
    for (;; ++failures) {
      ASSERT_LT(failures, 1000);
      fake_driver()->calls_until_failure = failures;
      try {
        core::Plan plan{.kernel = &kernel, .shape = p};
        plan.recipe = kernel.offer(p, 1).recipe;
        plan.prepared = kernel.prepare(plan);
        kernel.run(&p, plan, {&counter, nullptr}, nullptr);
        if (fake_driver()->calls_until_failure >= 0) break;  // no call is left to fail
        ADD_FAILURE() << "nobody heard that call " << failures << " failed";
      } catch (const core::Error& error) {
        EXPECT_LT(fake_driver()->calls_until_failure, 0) << error.what();
        EXPECT_NE(std::string_view(error.what()).find("CUDA_ERROR_FAKE"), std::string_view::npos) << error.what();
      }
    }
    std::cout << failures << " calls failed" << std::endl;
    EXPECT_GT(failures, 10);
    EXPECT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launched_on, 1);
  });
}

TEST_F(ForwardLaunch, TheLadderQueuesItsKernels) {
  in_child(sizeof(portable::LadderParams), [] {
    const AttentionArguments p = problem();
    const portable::LadderConfig config = cuda::ladder_config(p, cuda::device_info(1));
    const unsigned blocks = tiles(1000, config.tile_q) * 8 * 2;
    const core::Kernel& standard = named("cuda.standard");
    standard.run(&p, planned(standard, p), {}, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 3u);
    for (const cuda::CUlaunchConfig& launch : fake_driver()->launches) EXPECT_EQ(launch.gridDimX, blocks);
    EXPECT_EQ(fake_driver()->launches[0].gridDimY, tiles(900, config.tile_kv));
    const core::Kernel& flash_1 = named("cuda.flash_1");
    flash_1.run(&p, planned(flash_1, p), {}, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 4u);
    EXPECT_EQ(fake_driver()->launches[3].gridDimX, 8u * 2);
    EXPECT_EQ(standard.automatic, 0u);
    EXPECT_EQ(flash_1.automatic, 0u);
  });
}

}  // namespace
