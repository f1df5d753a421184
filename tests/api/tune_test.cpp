// The dataflow of linear: what is measured, kept, and looked up when a kernel is chosen.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "api/dataflow.hpp"
#include "api/plan_cache.hpp"
#include "core/error.hpp"
#include "operations/linear/dataflow.hpp"
#include "operations/linear/shipped_dataflow.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {
namespace {

TEST(Dataflow, LinesAreReadAndWritten) {
  const std::string text = "a\t1 cuda.x\t64 cuda.y\nb, with words\t16 cuda.z\n";
  const core::Dataflow dataflow(text);
  EXPECT_EQ(dataflow.string(), text);
  EXPECT_FALSE(dataflow.find("a", 65));
  for (const auto& [rows, kernel] : {std::pair{0, "cuda.x"}, {1, "cuda.x"}, {2, "cuda.y"}, {64, "cuda.y"}}) {
    EXPECT_EQ(dataflow.find("a", rows)->kernel, kernel) << rows;
  }
  EXPECT_EQ(dataflow.find("b, with words", 3)->rows, 16);
  EXPECT_FALSE(dataflow.find("c", 1));
}

TEST(Dataflow, ALineIsReplaced) {
  core::Dataflow dataflow("a\t1 cuda.x\nb\t2 cuda.y\n");
  dataflow.set("a", {{8, "cuda.z"}});
  EXPECT_EQ(dataflow.string(), "a\t8 cuda.z\nb\t2 cuda.y\n");
}

TEST(Dataflow, DamagedLinesAreLeftOut) {
  for (const char* line : {"a", "a\t", "a\tx cuda.x", "a\t1", "a\t1 ", "a\t0 cuda.x", "a\t-1 cuda.x",
                           "a\t2 cuda.x\t1 cuda.y", "a\t99999999999999999999 cuda.x", "\t1 cuda.x"}) {
    EXPECT_EQ(core::Dataflow(std::string(line) + "\nb\t1 cuda.x\n").string(), "b\t1 cuda.x\n") << line;
  }
}

TEST(Dataflow, WhatIsShippedIsWhole) {
  const core::Dataflow shipped(core::shipped_dataflow());
  EXPECT_EQ(shipped.string(), core::shipped_dataflow());
  core::LinearShape shape;
  shape.x_shape.dtype = shape.w_shape.dtype = core::DType::bf16;
  for (const auto& [out_features, in_features] :
       {std::pair{12288, 4096}, {4096, 11008}, {10240, 8192}, {8192, 22016}}) {
    shape.out_features = out_features;
    shape.in_features = in_features;
    const std::string key = core::dataflow_key(shape, "NVIDIA H200");
    EXPECT_EQ(shipped.find(key, 1)->kernel, "cuda.linear_sm90") << key;
    EXPECT_EQ(shipped.find(key, 128)->kernel, "cuda.linear_blas") << key;
  }
}

// A cache folder of the test's own.
class Tune : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tune_test_" + std::to_string(::getpid());
    ::setenv("TESSELLA_CACHE_DIR", folder_.c_str(), 1);
    api::forget_plans();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    ::unsetenv("TESSELLA_CACHE_DIR");
    api::forget_plans();
  }
  static std::string explain(const core::LinearShape& shape) {
    return api::make_plan(core::Shape::view(shape), {}, "test").explanation;
  }
  // On the CPU, with one thread.
  static core::LinearShape shape_of(core::DType dtype, int64_t rows, int64_t in_features, int64_t out_features) {
    core::LinearShape shape;
    shape.x_shape.dtype = shape.w_shape.dtype = shape.out_shape.dtype = dtype;
    shape.rows = rows;
    shape.in_features = in_features;
    shape.out_features = out_features;
    shape.num_threads = 1;
    return shape;
  }

  std::string folder_;
};

TEST_F(Tune, WhatWasMeasuredIsChosen) {
  const core::LinearShape shape = shape_of(core::DType::f64, 4, 64, 64);
  EXPECT_EQ(explain(shape).find("measured"), std::string::npos);
  api::keep_dataflow(api::dataflow_key(shape), {{2, "no.such_kernel"}, {8, "reference.linear"}});
  EXPECT_NE(
      explain(shape).find("kernel: reference.linear (plain loops in float64, the oracle), the fastest up to 8 rows, "
                          "measured on this machine"),
      std::string::npos)
      << explain(shape);
  core::LinearShape other = shape;
  other.rows = 2;  // of a kernel that is not there: the table decides
  EXPECT_NE(explain(other).find("kernel: reference.linear"), std::string::npos);
  EXPECT_EQ(explain(other).find("measured"), std::string::npos);
  other = shape;
  other.batch_invariant = true;
  EXPECT_EQ(explain(other).find("measured"), std::string::npos);
}

// Before the kernel that the table has first; for all threads too, which a plan may leave to the library.
TEST_F(Tune, AMeasurementGoesBeforeTheTable) {
  for (const int32_t num_threads : {1, 0}) {
    core::LinearShape shape = shape_of(core::DType::f32, 4, 64, 64);
    shape.num_threads = num_threads;
    api::keep_dataflow(api::dataflow_key(shape), {{8, "cpu.linear_baseline"}});
    EXPECT_NE(explain(shape).find("kernel: cpu.linear_baseline"), std::string::npos) << explain(shape);
    shape.rows = 9;  // more than were measured
    EXPECT_EQ(explain(shape).find("measured"), std::string::npos);
  }
}

TEST_F(Tune, MeasurementsOfSeveralThreadsAreKept) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] { api::keep_dataflow("key " + std::to_string(i), {{1, "a.kernel"}}); });
  }
  threads.clear();
  std::ifstream file(folder_ + "/linear_dataflow.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  EXPECT_EQ(lines, 8);
}

TEST_F(Tune, FoldersThatCannotBeWritten) {
  { std::ofstream(folder_) << "a file"; }
  try {
    api::keep_dataflow("a", {{1, "b"}});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("tune: "), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("is no folder"), std::string::npos);
  }
  ::unlink(folder_.c_str());
}

TEST_F(Tune, Measures) {
  tessella_tune_options options = TESSELLA_TUNE_OPTIONS_INIT;
  options.dtype = TESSELLA_F32;
  options.in_features = 70;
  options.out_features = 40;
  options.num_threads = 1;
  std::vector<std::string> lines;
  const auto progress = [](int32_t done, int32_t total, const char* line, void* user) {
    auto& said = *static_cast<std::vector<std::string>*>(user);
    said.emplace_back(line);
    EXPECT_EQ(done, static_cast<int32_t>(said.size()));
    EXPECT_GE(total, done);
  };
  ASSERT_EQ(tessella_tune(&options, progress, &lines), TESSELLA_OK) << tessella_last_error();
  EXPECT_TRUE(lines.front().starts_with("1 row: cpu.linear"));
  EXPECT_TRUE(lines.back().starts_with("128 rows: cpu.linear"));
  EXPECT_NE(explain(shape_of(core::DType::f32, 3, 70, 40)).find("measured on this machine"), std::string::npos);
}

TEST_F(Tune, Cancelled) {
  const int32_t cancel = 1;
  tessella_tune_options options = TESSELLA_TUNE_OPTIONS_INIT;
  options.dtype = TESSELLA_F32;
  options.in_features = options.out_features = 64;
  options.cancel = &cancel;
  EXPECT_EQ(tessella_tune(&options, nullptr, nullptr), TESSELLA_CANCELLED);
  EXPECT_STREQ(tessella_last_error(), "tune: it was cancelled; nothing of this layer is kept");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/linear_dataflow.txt"));
}

// A folder or a pipe of the file's name: it is not read, and tune says that it cannot write there.
TEST_F(Tune, WhatIsNoPlainFile) {
  std::filesystem::create_directories(folder_ + "/linear_dataflow.txt/folder");
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  EXPECT_EQ(explain(shape_of(core::DType::f32, 4, 64, 64)).find("measured"), std::string::npos);
  EXPECT_THROW(api::keep_dataflow("a", {{1, "b"}}), core::Error);
  std::filesystem::remove_all(folder_ + "/linear_dataflow.txt");
  ASSERT_EQ(::mkfifo((folder_ + "/linear_dataflow.txt").c_str(), 0600), 0);
  EXPECT_EQ(explain(shape_of(core::DType::f32, 4, 64, 64)).find("measured"), std::string::npos);
}

TEST_F(Tune, Errors) {
  const auto expect = [](const auto& change, tessella_status status, const std::string& message) {
    tessella_tune_options options = TESSELLA_TUNE_OPTIONS_INIT;
    options.in_features = options.out_features = 64;
    change(options);
    EXPECT_EQ(tessella_tune(&options, nullptr, nullptr), status);
    EXPECT_EQ(tessella_last_error(), "tune: " + message);
  };
  using Options = tessella_tune_options;
  expect([](Options& o) { o.device_type = 9; }, TESSELLA_INVALID_ARGUMENT,
         "device_type is 9, expected TESSELLA_CPU, TESSELLA_CUDA or the default");
  expect([](Options& o) { o.dtype = TESSELLA_F64; }, TESSELLA_INVALID_ARGUMENT,
         "dtype is f64, expected f32, bf16 or f16");
  expect([](Options& o) { o.w_dtype = TESSELLA_F32; }, TESSELLA_INVALID_ARGUMENT,
         "w_dtype is f32, expected bf16 = dtype, i8 or f8e4m3fn");
  expect([](Options& o) { o.activation = 5; }, TESSELLA_INVALID_ARGUMENT,
         "activation is 5, expected TESSELLA_ACTIVATION_NONE or TESSELLA_SWIGLU");
  expect([](Options& o) { o.in_features = 0; }, TESSELLA_INVALID_ARGUMENT, "in_features is 0, expected at least 1");
  expect([](Options& o) { o.out_features = -3; }, TESSELLA_INVALID_ARGUMENT, "out_features is -3, expected at least 1");
  expect([](Options& o) { o.num_threads = -1; }, TESSELLA_INVALID_ARGUMENT, "num_threads is -1, expected at least 0");
  expect([](Options& o) { o.in_features = o.out_features = int64_t{1} << 30; }, TESSELLA_UNSUPPORTED,
         "w has 1073741824 times 1073741824 elements, expected at most 2^36");
  EXPECT_EQ(tessella_tune(nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessella::tests
