// Schedules on a GPU, through the API: made once, followed by several calls, right while lengths change, and harmless
// whatever they hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/random.hpp"
#include "cases/tagged.hpp"

namespace tessella::tests {
namespace {

struct FreePlan {
  void operator()(tessella_plan* plan) const { tessella_plan_free(plan); }
};

// One query of ragged sequences over a long cache, with more blocks than sequences.
Case ragged(const std::string& dtype, int64_t page_size) {
  Case c{.dtype = dtype,
         .batch = 5,
         .heads_q = 8,
         .heads_kv = 2,
         .seqlen_q = 2,
         .seqlen_kv = 3000,
         .head_dim_qk = 64,
         .head_dim_v = 64,
         .seqlens_kv = true,
         .window_right = 0};
  c.page_size = page_size;
  return c;
}

class GpuSchedule : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
    for (const KernelInfo& kernel : gpu_kernels()) {
      if (kernel.name == GetParam() && !kernel.unavailable.empty()) GTEST_SKIP() << kernel.unavailable;
    }
  }
};

// A call on the GPU with its schedule.
class Scheduled {
 public:
  Scheduled(const Case& c, const char* kernel)
      : call_(c), twin_(blocks_with_all_pages(call_), false), options_(call_.options()) {
    options_.kernel = kernel;
    args_ = twin_.args(call_.args(), true);
    tensor_.device_type = TESSELLA_CUDA;
    args_.schedule = &tensor_;
    tessella_plan* plan = nullptr;
    EXPECT_EQ(tessella_plan_make(Tagged(args_, options_), &plan), TESSELLA_OK) << tessella_last_error();
    plan_.reset(plan);
    size_t bytes = 0;
    EXPECT_EQ(tessella_plan_schedule_size(plan, &bytes), TESSELLA_OK);
    EXPECT_GT(bytes, 0u);
    memory_ = std::make_unique<cli::GpuMemory>(twin_.gpu(), bytes);
    tensor_.data = memory_->data();
    tensor_.shape[0] = static_cast<int64_t>(bytes / sizeof(int32_t));
  }

  void make_schedule() {
    ASSERT_EQ(tessella_plan_schedule(plan_.get(), Tagged(args_, options_), twin_.stream()), TESSELLA_OK)
        << tessella_last_error();
  }
  void run() {
    twin_.poison_outputs();
    ASSERT_EQ(tessella_plan_run(plan_.get(), Tagged(args_, options_), nullptr, twin_.stream()), TESSELLA_OK)
        << tessella_last_error();
  }
  void run_plain() {
    twin_.poison_outputs();
    ASSERT_EQ(tessella_forward(&args_, &options_, twin_.stream()), TESSELLA_OK) << tessella_last_error();
  }
  std::string check() {
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    if (tessella_check(Tagged(args_, options_), 0, 1, &report) != TESSELLA_OK) return tessella_last_error();
    return report.passed == 1 ? "" : "error " + std::to_string(report.max_error);
  }
  void expect_right() { EXPECT_EQ(check(), ""); }
  void set_lengths(const std::vector<int32_t>& lengths) {
    put(args_.seqlens_kv->data, lengths);
    twin_.gpu().synchronize(twin_.stream());
  }
  void set_schedule(const std::vector<int32_t>& words) { put(tensor_.data, words); }
  int64_t words() const { return tensor_.shape[0]; }
  GpuTwin& twin() { return twin_; }
  tessella_attention_options& options() { return options_; }

 private:
  void put(void* to, const std::vector<int32_t>& values) {
    twin_.gpu().copy_to_gpu(to, values.data(), values.size() * sizeof(int32_t), twin_.stream());
    twin_.gpu().synchronize(twin_.stream());
  }

  // Entries behind the lengths have pages too, for lengths that grow.
  static std::vector<HostBlock> blocks_with_all_pages(Call& call) {
    if (const tessella_tensor* table = call.args().page_table; table != nullptr) {
      for (int64_t i = 0; i < table->shape[0] * table->shape[1]; ++i) {
        int32_t& page = static_cast<int32_t*>(table->data)[i];
        if (page < 0 || page >= call.args().k->shape[0]) page = 0;
      }
    }
    return call.blocks();
  }

  Call call_;
  GpuTwin twin_;
  tessella_attention_options options_;
  tessella_forward_args args_{};
  tessella_tensor tensor_ = TESSELLA_TENSOR1(nullptr, TESSELLA_I32, 1);
  std::unique_ptr<tessella_plan, FreePlan> plan_;
  std::unique_ptr<cli::GpuMemory> memory_;
};

TEST_P(GpuSchedule, AScheduleServesCallsAndLengthsThatGrow) {
  for (const char* dtype : {"bf16", "f32"}) {
    for (const int64_t page_size : {0, 16}) {
      Scheduled decode(ragged(dtype, page_size), GetParam());
      for (int32_t step = 0; step < 3; ++step) {
        decode.set_lengths({1 + step, 700 + 100 * step, 33, 2600 + step, 0});
        if (step != 1) decode.make_schedule();
        decode.run();
        decode.expect_right();
        const std::vector<std::byte> first = decode.twin().outputs();
        decode.options().cache_settled = 1;
        decode.run();
        EXPECT_TRUE(decode.twin().outputs() == first) << "other bits behind a run that reads the same schedule";
        decode.options().cache_settled = 0;
        decode.run_plain();
        decode.expect_right();
      }
    }
  }
}

// Results are not defined then; nothing but outputs is written, and every call ends.
TEST_P(GpuSchedule, NothingOfAScheduleIsTrusted) {
  Scheduled decode(ragged("bf16", 16), GetParam());
  Random random(7);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<int32_t> words(static_cast<size_t>(decode.words()));
    for (int32_t& word : words) {
      word = random.chance(0.5) ? static_cast<int32_t>(random.bits()) : static_cast<int32_t>(random.bits() % 100);
    }
    decode.set_schedule(words);
    decode.run();
    ASSERT_EQ(decode.twin().download(), "");
  }
  decode.make_schedule();
  decode.run();
  decode.expect_right();
}

INSTANTIATE_TEST_SUITE_P(Kernels, GpuSchedule, testing::Values("cuda.decode", "cuda.decode_unified_max"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& letter : name) letter = letter == '.' ? '_' : letter;
                           return name;
                         });

}  // namespace
}  // namespace tessella::tests
