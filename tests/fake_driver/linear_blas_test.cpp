// What cuda.linear_blas asks of cuBLAS and queues, and when it is chosen, on a driver and a cuBLAS that only remember.
// Each test is a child process.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "child.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/plan.hpp"
#include "cuda/kernels.hpp"
#include "cuda/kernels/linear_blas/params.cuh"
#include "fake_cublas.hpp"
#include "fake_driver.hpp"
#include "operations/linear/arguments.hpp"
#include "planned.hpp"

namespace {

using namespace tessella;
using namespace tessella::cuda;
using core::DType;
using core::LinearArguments;

constexpr int64_t kColumns = 512, kOutFeatures = 640, kRows = 200;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

alignas(256) std::byte g_x[64], g_w[64], g_out[64], g_bias[64];

core::Operand matrix(std::byte* data, int64_t columns, DType dtype = DType::bf16) {
  return {.data = data, .dtype = dtype, .row_stride = columns};
}

LinearArguments arguments(int64_t rows = kRows) {
  LinearArguments a;
  a.device = {core::DeviceType::cuda, 1};
  a.rows = rows;
  a.in_features = kColumns;
  a.out_features = kOutFeatures;
  a.x = matrix(g_x, kColumns);
  a.w = matrix(g_w, kColumns);
  a.out = matrix(g_out, kOutFeatures);
  a.derive_shape();
  return a;
}

void in_child(void (*fn)(), tests::Variables variables = {}) {
  variables.insert(variables.begin(), {{"TESSELLA_CUBLAS", TESSELLA_TEST_CUBLAS},
                                       {"FAKE_CUDA_PARAMS", std::to_string(sizeof(portable::LinearBlasParams))},
                                       {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}});
  tests::in_child(variables, fn);
}

// A plan run in memory that nothing touches.
struct PlanRun {
  core::Plan plan;
  std::vector<std::byte> scratch;

  explicit PlanRun(const LinearArguments& a)
      : plan(tests::planned("cuda.linear_blas", core::shape(&a))),
        scratch(static_cast<size_t>(plan.workspace.scratch_bytes)) {
    run(a);
  }
  void run(const LinearArguments& a, void* stream = nullptr) {
    plan.kernel->run(&a, plan, {nullptr, scratch.data()}, stream);
  }
};

std::vector<FakeCublas::Product>& products() { return fake_cublas()->products; }

core::Plan chosen(const LinearArguments& a) {
  return core::choose(core::shape(&a), std::array{cuda_kernels()}, {}, "linear");
}

// out^T = w x^T by columns, without a step.
TEST(LinearBlas, PlainProduct) {
  in_child([] {
    LinearArguments a = arguments();
    a.x.row_stride = kColumns + 8;
    a.out.row_stride = kOutFeatures + 16;
    a.num_sms = 20;
    PlanRun run(a);
    ASSERT_EQ(products().size(), 1u);
    void* const stream = &run;
    run.run(a, stream);
    ASSERT_EQ(products().size(), 2u);
    EXPECT_TRUE(fake_driver()->launches.empty());
    EXPECT_EQ(fake_cublas()->num_created, 1);
    EXPECT_EQ(fake_cublas()->math_mode, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    const FakeCublas::Product& p = products()[1];
    EXPECT_EQ(p.op_a, CUBLAS_OP_T);
    EXPECT_EQ(p.op_b, CUBLAS_OP_N);
    EXPECT_EQ((std::array{p.m, p.n, p.k}), (std::array{kOutFeatures, kRows, kColumns}));
    EXPECT_EQ((std::array{p.lda, p.ldb, p.ldc}), (std::array{kColumns, kColumns + 8, kOutFeatures + 16}));
    EXPECT_EQ((std::array<const void*, 3>{p.a, p.b, p.c}), (std::array<const void*, 3>{g_w, g_x, g_out}));
    EXPECT_EQ((std::array{p.a_type, p.b_type, p.c_type}), (std::array{CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF}));
    EXPECT_EQ(p.compute, CUBLAS_COMPUTE_32F);
    EXPECT_EQ(p.alpha, 1);
    EXPECT_EQ(p.beta, 0);
    EXPECT_EQ(p.num_sms, 20);
    EXPECT_EQ(p.stream, static_cast<CUstream>(stream));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p.workspace) % 256, 0u);
    EXPECT_EQ(p.workspace_bytes, kWorkspaceBytes);
    EXPECT_GE(p.workspace, run.scratch.data());
    EXPECT_LE(static_cast<const std::byte*>(p.workspace) + p.workspace_bytes, run.scratch.data() + run.scratch.size());
  });
}

TEST(LinearBlas, Types) {
  in_child([] {
    LinearArguments a = arguments();
    for (const auto& [dtype, type] : {std::pair{DType::f32, CUDA_R_32F}, {DType::f16, CUDA_R_16F}}) {
      a.x.dtype = a.w.dtype = a.out.dtype = dtype;
      a.derive_shape();
      const PlanRun run(a);
      const FakeCublas::Product& p = products().back();
      EXPECT_EQ((std::array{p.a_type, p.b_type, p.c_type}), (std::array{type, type, type}));
    }
    a.out.dtype = DType::f32;
    a.derive_shape();
    const PlanRun run(a);
    EXPECT_EQ(products().back().a_type, CUDA_R_16F);
    EXPECT_EQ(products().back().c_type, CUDA_R_32F);
    EXPECT_EQ(fake_cublas()->num_created, 1);
  });
}

// Rows that overlap, or lie backwards, go one at a time.
TEST(LinearBlas, RowsOfAnyDistance) {
  in_child([] {
    LinearArguments a = arguments(70);
    a.x.row_stride = 0;
    const PlanRun broadcast(a);
    ASSERT_EQ(products().size(), 70u);
    for (const int64_t row : {0, 69}) {
      const FakeCublas::Product& p = products()[static_cast<size_t>(row)];
      EXPECT_EQ((std::array{p.m, p.n}), (std::array{kOutFeatures, int64_t{1}}));
      EXPECT_EQ(p.b, g_x);
      EXPECT_EQ(p.c, g_out + row * kOutFeatures * 2);
      EXPECT_EQ(p.ldb, kColumns);
    }
    products().clear();
    a.x.row_stride = kColumns;
    a.out.row_stride = -kOutFeatures;
    const PlanRun backwards(a);
    ASSERT_EQ(products().size(), 70u);
    EXPECT_EQ(products()[69].b, g_x + 69 * kColumns * 2);
    EXPECT_EQ(products()[69].c, g_out - 69 * kOutFeatures * 2);
    products().clear();
    a.out.row_stride = kOutFeatures;
    a.w.row_stride = 1;
    const PlanRun of_w(a);
    ASSERT_EQ(products().size(), static_cast<size_t>(kOutFeatures));
    EXPECT_EQ((std::array{products()[3].m, products()[3].n}), (std::array{int64_t{1}, int64_t{70}}));
    EXPECT_EQ(products()[3].a, g_w + 3 * 2);
    EXPECT_EQ(products()[3].c, g_out + 3 * 2);
    EXPECT_EQ(products()[3].ldc, kOutFeatures);
  });
}

// Sums in the scratch, which a step finishes.
TEST(LinearBlas, SumsAndStep) {
  in_child([] {
    tests::skip_without_nvrtc();
    LinearArguments a = arguments();
    a.bias = {.data = g_bias, .dtype = DType::f32};
    a.activation = core::Activation::swiglu;
    a.derive_shape();
    const PlanRun run(a);
    ASSERT_EQ(products().size(), 1u);
    const FakeCublas::Product& p = products()[0];
    EXPECT_EQ((std::array{p.m, p.n, p.k}), (std::array{2 * kOutFeatures, kRows, kColumns}));
    EXPECT_EQ(p.c, run.scratch.data());
    EXPECT_EQ(p.c_type, CUDA_R_32F);
    EXPECT_EQ(p.ldc, 2 * kOutFeatures);
    EXPECT_GE(p.workspace, run.scratch.data() + kRows * 2 * kOutFeatures * 4);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, kRows * kOutFeatures / 1024u);
    portable::LinearBlasParams params;
    ASSERT_EQ(fake_driver()->parameters.size(), sizeof params);
    std::memcpy(&params, fake_driver()->parameters.data(), sizeof params);
    EXPECT_EQ(params.sums, static_cast<const void*>(run.scratch.data()));
    EXPECT_EQ(params.out.out, g_out);
    EXPECT_EQ(params.out.rows, kRows);
    EXPECT_EQ(params.is_swiglu, 1);
  });
}

// As many rows at a time as there is memory for: whole tiles, and the rest.
TEST(LinearBlas, Bands) {
  in_child([] {
    tests::skip_without_nvrtc();
    LinearArguments a = arguments(1000);
    a.out_features = 80000;
    a.out = a.residual = matrix(g_out, a.out_features);
    a.derive_shape();
    const PlanRun run(a);
    ASSERT_EQ(products().size(), 3u);
    ASSERT_EQ(fake_driver()->launches.size(), 3u);
    EXPECT_EQ((std::array{products()[0].n, products()[1].n, products()[2].n}), (std::array<int64_t, 3>{384, 384, 232}));
    EXPECT_EQ(products()[2].b, g_x + 768 * kColumns * 2);
    EXPECT_EQ(products()[2].c, run.scratch.data());
    portable::LinearBlasParams params;
    std::memcpy(&params, fake_driver()->parameters.data(), sizeof params);
    EXPECT_EQ(params.out.rows, 232);
    EXPECT_EQ(params.out.out, g_out + 768 * a.out_features * 2);
    EXPECT_EQ(params.out.residual, params.out.out);
  });
}

// A handle has the stream and the workspace of the thread that queues.
TEST(LinearBlas, ThreadsTakeTurns) {
  in_child([] {
    constexpr size_t kThreads = 4, kRuns = 500;
    const LinearArguments a = arguments();
    std::vector<std::unique_ptr<PlanRun>> runs;
    for (size_t i = 0; i < kThreads; ++i) runs.push_back(std::make_unique<PlanRun>(a));
    products().clear();
    std::vector<std::thread> threads;
    for (const auto& run : runs) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < kRuns; ++i) run->run(a, run.get());
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(products().size(), kThreads * kRuns);
    for (const FakeCublas::Product& p : products()) {
      const auto& scratch = reinterpret_cast<const PlanRun*>(p.stream)->scratch;
      ASSERT_TRUE(p.workspace >= scratch.data() && p.workspace < scratch.data() + scratch.size());
    }
    EXPECT_EQ(fake_cublas()->num_created, 1);
  });
}

TEST(LinearBlas, NothingWithoutRows) {
  in_child([] {
    LinearArguments a = arguments();
    PlanRun run(a);
    products().clear();
    a.rows = 0;
    run.run(a);
    EXPECT_TRUE(products().empty());
  });
}

TEST(LinearBlas, FailuresSayWhat) {
  in_child([] {
    const LinearArguments a = arguments();
    for (const auto& [result, code] : {std::pair{13, core::ErrorCode::device}, {3, core::ErrorCode::out_of_memory}}) {
      fake_cublas()->result = result;
      try {
        const PlanRun run(a);
        ADD_FAILURE();
      } catch (const core::Error& error) {
        EXPECT_EQ(error.code(), code);
        EXPECT_STREQ(error.what(), "cublasGemmEx: as the test wishes");
      }
    }
  });
}

// More than 64 rows, unless it is named; and what it does not take.
TEST(LinearBlas, Choice) {
  in_child([] {
    EXPECT_EQ(chosen(arguments(65)).kernel->name, "cuda.linear_blas");
    const LinearArguments few = arguments(64);
    EXPECT_EQ(chosen(few).kernel->name, "cuda.linear_sm90");
    EXPECT_EQ(tests::chosen("cuda.linear_blas", core::shape(&few)).kernel->name, "cuda.linear_blas");
    LinearArguments many = arguments(65);
    many.x_shape.dtype = many.w_shape.dtype = many.out_shape.dtype = DType::f32;
    EXPECT_EQ(chosen(many).kernel->name, "cuda.linear_blas");
    many = arguments(65);
    many.batch_invariant = true;
    EXPECT_NE(chosen(many).explanation.find("not eligible: cuda.linear_blas: does not know the order of cuBLAS's sums"),
              std::string::npos);
    many = arguments(65);
    many.w_shape.dtype = DType::i8;
    EXPECT_NE(chosen(many).explanation.find("not eligible: cuda.linear_blas: does not compute w.dtype i8"),
              std::string::npos);
    EXPECT_TRUE(
        tests::says("cuda.linear_blas", core::shape(&few), "cuBLAS 13.0, " TESSELLA_TEST_CUBLAS ", straight into out"));
  });
}

// Few rows do not look for cuBLAS: here that would be seen.
TEST(LinearBlas, IsOpenedWhenItIsNeeded) {
  in_child(
      [] {
        const LinearArguments few = arguments(64), many = arguments(65);
        EXPECT_EQ(chosen(few).explanation.find("TESSELLA_CUBLAS"), std::string::npos);
        const core::Plan plan = chosen(many);
        EXPECT_EQ(plan.kernel->name, "cuda.linear_sm90");
        EXPECT_NE(plan.explanation.find("not eligible: cuda.linear_blas: TESSELLA_CUBLAS is '/nonexistent.so', "
                                        "expected the path of cuBLAS version 12 or newer, at most the driver's; no "
                                        "/nonexistent.so"),
                  std::string::npos)
            << plan.explanation;
        // Nor does a measurement, or the caller, choose it then.
        EXPECT_EQ(core::choose(core::shape(&few), std::array{cuda_kernels()}, {}, "linear", {"cuda.linear_blas", ""})
                      .kernel->name,
                  "cuda.linear_sm90");
        EXPECT_NE(core::ineligible(tests::named("cuda.linear_blas"), core::shape(&few)), "");
        EXPECT_THROW(tests::chosen("cuda.linear_blas", core::shape(&few)), core::Error);
      },
      {{"TESSELLA_CUBLAS", "/nonexistent.so"}});
}

TEST(LinearBlas, VersionsThatTheDriverDoesNotRun) {
  in_child(
      [] {
        const LinearArguments many = arguments(65);
        const std::string explanation = chosen(many).explanation;
        EXPECT_NE(explanation.find("is version 14, and the driver runs up to 13"), std::string::npos) << explanation;
      },
      {{"FAKE_CUBLAS_MAJOR", "14"}});
}

}  // namespace
