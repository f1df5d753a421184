// What cuda.append and cuda.copy_pages queue, on a driver that only remembers. Each test is a child process.
#include <gtest/gtest.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "child.hpp"
#include "core/plan.hpp"
#include "cuda/kernels/append/params.cuh"
#include "cuda/kernels/copy_pages/params.cuh"
#include "fake_driver.hpp"
#include "operations/append/arguments.hpp"
#include "operations/copy_pages/arguments.hpp"
#include "planned.hpp"

namespace {

using namespace tessella;
using core::AppendArguments;
using core::CopyPagesArguments;
using core::DType;

constexpr unsigned kNumSms = 100;  // the fake GPU's
constexpr core::Device kGpu = {core::DeviceType::cuda, 1};

std::byte* aligned_memory() {
  static std::byte memory[64];
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory) + 15) / 16 * 16);
}

AppendArguments append_arguments(int64_t batch, int64_t seqlen_new) {
  constexpr int64_t kHeads = 8, kDim = 128, kRows = 4096;
  static const int32_t table[1] = {};
  AppendArguments a;
  a.device = kGpu;
  a.batch = batch;
  a.seqlen_new = a.total_new = seqlen_new;
  a.k_new = a.v_new = {kHeads, kDim};
  const core::Operand rows{aligned_memory(), DType::bf16, seqlen_new * kHeads * kDim, kHeads * kDim, kDim};
  const core::Operand cache{aligned_memory(), DType::bf16, kRows * kHeads * kDim, kHeads * kDim, kDim};
  a.k_rows = a.v_rows = {rows, cache};
  a.num_slots = batch;
  a.seqlen_kv = kRows;
  a.seqlens_kv = {table, 0, 0};
  a.derive_shape();
  return a;
}

CopyPagesArguments copy_arguments(int32_t num_pools, int64_t num_pairs) {
  static const int32_t pairs[2] = {};
  CopyPagesArguments a;
  a.device = kGpu;
  a.num_pages = 64;
  a.num_pairs = num_pairs;
  const core::Operand pages{aligned_memory(), DType::bf16, 16 * 8 * 128, 8 * 128, 128};
  a.given.assign(static_cast<size_t>(num_pools), {pages, 16, 8, 128});
  a.pairs = {pairs, 0, 1};
  a.derive_shape();
  return a;
}

core::Plan planned(std::string_view kernel, const core::Shape& shape) {
  core::Plan plan = tests::planned(kernel, shape);
  EXPECT_EQ(plan.workspace.state_bytes + plan.workspace.scratch_bytes, 0);
  return plan;
}

void in_child(size_t params_bytes, void (*fn)()) {
  tests::in_child({{"FAKE_CUDA_PARAMS", std::to_string(params_bytes)}, {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}},
                  [fn] {
                    tests::skip_without_nvrtc();
                    fn();
                  });
}

// 16 threads have a row of 128 bf16, so 16 rows are a block's: a decode step of 4 sequences with 8 heads takes 4
// blocks.
TEST(AppendLaunch, OneLaunchOfNoMoreBlocksThanRowsWant) {
  in_child(sizeof(portable::AppendParams), [] {
    for (const auto& [batch, seqlen_new, blocks] :
         {std::tuple{int64_t{4}, int64_t{1}, 4u}, {int64_t{1}, int64_t{1}, 1u}, {int64_t{8}, int64_t{900}, 400u}}) {
      const AppendArguments a = append_arguments(batch, seqlen_new);
      const core::Plan plan = planned("cuda.append", core::shape(&a));
      fake_driver()->launches.clear();
      plan.kernel->run(&a, plan, {}, nullptr);
      ASSERT_EQ(fake_driver()->launches.size(), 1u);
      EXPECT_EQ(fake_driver()->launches[0].gridDimX, blocks);
      EXPECT_EQ(fake_driver()->launches[0].blockDimX, static_cast<unsigned>(portable::kAppendThreads));
    }
    static_assert(400 == kNumSms * portable::kAppendBlocksPerSm);
    const AppendArguments none = append_arguments(0, 1);
    const core::Plan plan = planned("cuda.append", core::shape(&none));
    fake_driver()->launches.clear();
    plan.kernel->run(&none, plan, {}, nullptr);
    EXPECT_EQ(fake_driver()->launches.size(), 0u);
  });
}

TEST(AppendLaunch, ExplainsItsLoads) {
  in_child(sizeof(portable::AppendParams), [] {
    AppendArguments a = append_arguments(2, 1);
    const auto says = [&](const char* words) { return tests::says("cuda.append", core::shape(&a), words); };
    EXPECT_TRUE(says("16-byte loads"));
    a.rotary = DType::f32;
    for (const auto& [rotary_dim, is_interleaved, words] : {std::tuple{int64_t{128}, false, "16-byte loads"},
                                                            {int64_t{24}, true, "16-byte loads"},
                                                            {int64_t{24}, false, "scalar loads"},
                                                            {int64_t{20}, true, "scalar loads"}}) {
      a.rotary_dim = rotary_dim;
      a.rotary_interleaved = is_interleaved;
      EXPECT_TRUE(says(words)) << rotary_dim << is_interleaved;
    }
    a = append_arguments(2, 1);
    a.v_rows.into.head_stride += 4;
    a.derive_shape();
    EXPECT_TRUE(says("scalar loads"));
  });
}

TEST(CopyPagesLaunch, AStepForAsManyPoolsAsParametersHold) {
  in_child(sizeof(portable::CopyPagesParams), [] {
    // A page has 2048 pieces of 16 bytes, of which a block has 1024 at a time.
    for (const auto& [pools, pairs, grids] : {std::tuple{1, int64_t{3}, std::vector<unsigned>{6}},
                                              {60, int64_t{2}, std::vector<unsigned>{240}},
                                              {61, int64_t{1}, std::vector<unsigned>{120, 2}},
                                              {160, int64_t{9}, std::vector<unsigned>{400, 400, 400}},
                                              {2, int64_t{0}, std::vector<unsigned>{}}}) {
      const CopyPagesArguments a = copy_arguments(pools, pairs);
      const core::Plan plan = planned("cuda.copy_pages", core::shape(&a));
      fake_driver()->launches.clear();
      plan.kernel->run(&a, plan, {}, nullptr);
      std::vector<unsigned> launched;
      for (const cuda::CUlaunchConfig& launch : fake_driver()->launches) launched.push_back(launch.gridDimX);
      EXPECT_EQ(launched, grids) << pools;
    }
    const CopyPagesArguments many = copy_arguments(61, 1);
    EXPECT_TRUE(tests::says("cuda.copy_pages", core::shape(&many), "16-byte loads, 2 steps of at most 60 pools, "));
  });
}

}  // namespace
