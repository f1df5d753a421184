// What cuda.linear_sm90 queues, and which kernel of linear a call has, on a driver that only remembers. Each test is a
// child process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "api/plan_cache.hpp"
#include "child.hpp"
#include "core/choose.hpp"
#include "core/plan.hpp"
#include "cuda/kernels.hpp"
#include "cuda/kernels/linear_sm90/params.cuh"
#include "fake_driver.hpp"
#include "operations/linear/arguments.hpp"
#include "planned.hpp"

namespace {

using namespace tessella;
using core::DType;
using core::LinearArguments;

constexpr unsigned kNumSms = 100;  // the fake GPU's
constexpr int64_t kColumns = 4096;

LinearArguments arguments(int64_t rows, int64_t out_features) {
  alignas(16) static std::byte memory[16];
  const auto matrix = [](int64_t columns) {
    return core::Operand{.data = memory, .dtype = DType::bf16, .row_stride = columns};
  };
  LinearArguments a;
  a.device = {core::DeviceType::cuda, 1};
  a.rows = rows;
  a.in_features = kColumns;
  a.out_features = out_features;
  a.x = a.w = matrix(kColumns);
  a.out = matrix(out_features);
  a.derive_shape();
  return a;
}

core::Plan planned(const LinearArguments& a) { return tests::planned("cuda.linear_sm90", core::shape(&a)); }

void in_child(void (*fn)(), const char* gpu = "Fake GPU") {
  tests::in_child({{"FAKE_CUDA_PARAMS", std::to_string(sizeof(portable::LinearSm90Params))},
                   {"FAKE_CUDA_NAME", gpu},
                   {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}},
                  [fn] {
                    tests::skip_without_nvrtc();
                    fn();
                  });
}

bool has(cuda::CUlaunchAttributeID id) {
  return std::ranges::any_of(fake_driver()->attributes,
                             [id](const cuda::CUlaunchAttribute& attribute) { return attribute.id == id; });
}

// A cluster a tile, where that fills the GPU.
TEST(LinearLaunch, Clusters) {
  in_child([] {
    const LinearArguments a = arguments(5, 50 * 64 - 10);
    const core::Plan plan = planned(a);
    EXPECT_EQ(plan.workspace.scratch_bytes + plan.workspace.state_bytes, 0);
    plan.kernel->run(&a, plan, {}, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 100u);
    EXPECT_EQ(fake_driver()->launches[0].blockDimX, static_cast<unsigned>(portable::kLinearSm90Threads));
    EXPECT_TRUE(has(cuda::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
    EXPECT_TRUE(has(cuda::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
    ASSERT_EQ(fake_driver()->tensor_maps.size(), 2u);
    const FakeDriver::TensorMap &w = fake_driver()->tensor_maps[0], &x = fake_driver()->tensor_maps[1];
    EXPECT_EQ(std::vector(w.sizes, w.sizes + 4), (std::vector<uint64_t>{kColumns, 50 * 64 - 10, 1, 1}));
    EXPECT_EQ(std::vector(x.sizes, x.sizes + 4), (std::vector<uint64_t>{kColumns, 5, 1, 1}));
    EXPECT_EQ(std::vector(w.box, w.box + 2), (std::vector<uint32_t>{64, 64}));
    EXPECT_EQ(std::vector(x.box, x.box + 2), (std::vector<uint32_t>{64, 8}));
  });
}

// And in few tiles.
TEST(LinearLaunch, FewTiles) {
  in_child([] {
    const LinearArguments a = arguments(64, 3 * 64);
    const core::Plan plan = planned(a);
    plan.kernel->run(&a, plan, {}, nullptr);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 12u);
  });
}

// Else at most a block a multiprocessor: of 16 steps a tile, 12 a block or 7.
TEST(LinearLaunch, Streams) {
  in_child([] {
    for (const auto& [out_features, blocks] : {std::pair{70 * 64, 94u}, std::pair{40 * 64, 92u}}) {
      const LinearArguments a = arguments(64, out_features);
      const core::Plan plan = planned(a);
      EXPECT_EQ(plan.workspace.state_bytes, portable::counter_bytes(kNumSms));
      EXPECT_EQ(plan.workspace.scratch_bytes, int64_t{kNumSms} * 2 * 64 * 64 * 4);
      std::vector<std::byte> state(static_cast<size_t>(plan.workspace.state_bytes)),
          scratch(static_cast<size_t>(plan.workspace.scratch_bytes));
      fake_driver()->launches.clear();
      plan.kernel->run(&a, plan, {state.data(), scratch.data()}, nullptr);
      ASSERT_EQ(fake_driver()->launches.size(), 1u);
      EXPECT_EQ(fake_driver()->launches[0].gridDimX, blocks) << out_features;
      EXPECT_FALSE(has(cuda::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
    }
  });
}

// Which kernel a call has that names none.
TEST(LinearLaunch, Choice) {
  in_child([] {
    const auto chosen = [](const LinearArguments& a) {
      return core::choose(core::shape(&a), std::array{cuda::cuda_kernels()}, {}, "linear").kernel->name;
    };
    LinearArguments one = arguments(1, 640), few = arguments(2, 640);
    EXPECT_EQ(chosen(one), "cuda.linear_sm90");
    EXPECT_EQ(chosen(few), "cuda.linear_sm90");
    for (LinearArguments* a : {&one, &few}) a->w_shape.dtype = DType::i8;
    EXPECT_EQ(chosen(one), "cuda.linear_gemv");
    EXPECT_EQ(chosen(few), "cuda.linear_sm80");
    one.batch_invariant = true;
    EXPECT_EQ(chosen(one), "cuda.linear_sm80");
    few.x_shape.dtype = few.out_shape.dtype = DType::f32;
    EXPECT_EQ(chosen(few), "cuda.linear_gemv");
    // Named, a kernel takes what it would leave to others.
    const LinearArguments many = arguments(64, 640);
    EXPECT_EQ(tests::chosen("cuda.linear_gemv", core::shape(&many)).kernel->name, "cuda.linear_gemv");
  });
}

// On an H200 the library knows some matrices, but not all.
TEST(LinearLaunch, ShippedDataflow) {
  in_child(
      [] {
        const auto explained = [](int64_t rows, int64_t out_features) {
          const LinearArguments a = arguments(rows, out_features);
          return api::make_plan(core::shape(&a), {}, "test").explanation;
        };
        EXPECT_NE(explained(8, 12288).find(", the fastest up to 64 rows, measured on such a GPU"), std::string::npos)
            << explained(8, 12288);
        EXPECT_EQ(explained(8, 640).find("measured"), std::string::npos);
      },
      "NVIDIA H200");
}

TEST(LinearLaunch, NothingWithoutRows) {
  in_child([] {
    LinearArguments a = arguments(5, 640);
    const core::Plan plan = planned(a);
    a.rows = 0;
    plan.kernel->run(&a, plan, {}, nullptr);
    EXPECT_TRUE(fake_driver()->launches.empty());
  });
}

}  // namespace
