// What cuda.merge queues, on a driver that only remembers: a launch for every 32 states. Each test is a child process.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "child.hpp"
#include "core/plan.hpp"
#include "cuda/kernels/merge/params.cuh"
#include "fake_driver.hpp"
#include "operations/merge/arguments.hpp"
#include "planned.hpp"

namespace {

using namespace tessella;
using core::DType;
using core::MergeArguments;

constexpr int64_t kBatch = 2, kSeqlen = 1000, kHeads = 8, kDim = 128;
constexpr unsigned kNumSms = 100;  // the fake GPU's

MergeArguments arguments(int32_t num_states, DType dtype = DType::bf16) {
  static std::byte memory[64];
  MergeArguments a;
  a.device = {core::DeviceType::cuda, 1};
  a.batch = kBatch;
  a.seqlen = kSeqlen;
  a.heads = kHeads;
  a.head_dim = kDim;
  auto* data = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory) + 15) / 16 * 16);
  const MergeArguments::State state{{data, dtype, kSeqlen * kHeads * kDim, kHeads * kDim, kDim},
                                    {data, DType::f32, kHeads * kSeqlen, 1, kSeqlen}};
  a.given.assign(static_cast<size_t>(num_states), state);
  a.result = state;
  a.derive_shape();
  return a;
}

core::Plan planned(const MergeArguments& a) { return tests::planned("cuda.merge", core::shape(&a)); }

void in_child(void (*fn)()) {
  tests::in_child({{"FAKE_CUDA_PARAMS", std::to_string(sizeof(portable::MergeParams))},
                   {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}},
                  [fn] {
                    tests::skip_without_nvrtc();
                    fn();
                  });
}

TEST(MergeLaunch, AStepForEvery32States) {
  in_child([] {
    for (const auto& [states, steps] : {std::pair{1, 1}, {2, 1}, {32, 1}, {33, 2}, {64, 2}, {65, 3}, {70, 3}}) {
      const MergeArguments a = arguments(states);
      const core::Plan plan = planned(a);
      std::vector<float> scratch(static_cast<size_t>(plan.workspace.scratch_bytes) / sizeof(float));
      EXPECT_EQ(scratch.size(), steps == 1 ? 0u : static_cast<size_t>(kBatch * kSeqlen * kHeads * (kDim + 1)));
      fake_driver()->launches.clear();
      plan.kernel->run(&a, plan, {nullptr, scratch.data()}, nullptr);
      ASSERT_EQ(fake_driver()->launches.size(), static_cast<size_t>(steps)) << states;
      for (const cuda::CUlaunchConfig& launch : fake_driver()->launches) {
        EXPECT_EQ(launch.gridDimX, kNumSms * portable::kMergeBlocksPerSm);
        EXPECT_EQ(launch.blockDimX, static_cast<unsigned>(portable::kMergeThreads));
      }
    }
  });
}

// 16 threads have a row of 128 bf16, so 16 rows are a block's.
TEST(MergeLaunch, NoMoreBlocksThanRowsWant) {
  in_child([] {
    MergeArguments a = arguments(2);
    const core::Plan plan = planned(a);
    a.batch = 1;
    a.seqlen = 9;
    plan.kernel->run(&a, plan, {}, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 5u);
    a.seqlen = 0;
    plan.kernel->run(&a, plan, {}, nullptr);
    EXPECT_EQ(fake_driver()->launches.size(), 1u);
  });
}

TEST(MergeLaunch, ExplainsItsLoads) {
  in_child([] {
    const auto says = [](const MergeArguments& a, const char* words) {
      return tests::says("cuda.merge", core::shape(&a), words);
    };
    EXPECT_TRUE(says(arguments(2), "16-byte loads, 1 step, "));
    EXPECT_TRUE(says(arguments(70, DType::f32), "16-byte loads, 3 steps of at most 32 states, "));
    MergeArguments a = arguments(2);
    a.head_dim = 100;
    EXPECT_TRUE(says(a, "scalar loads, 1 step, "));
    a = arguments(2);
    a.given[1].out.row_stride += 4;
    a.derive_shape();
    EXPECT_TRUE(says(a, "scalar loads, 1 step, "));
  });
}

}  // namespace
