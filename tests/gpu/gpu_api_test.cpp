// CUDA tensors in the API: whose device counts, what is checked and copied. Nothing here launches a kernel, so that it
// also runs over tests/host_gpu.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/append_call.hpp"
#include "cases/backward_call.hpp"
#include "cases/backward_features.hpp"
#include "cases/call.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/tagged.hpp"

namespace tessella::tests {
namespace {

class GpuApi : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
    tessella_plan* plan = nullptr;
    const Call call({});
    GpuTwin twin(call.blocks(), false);
    const tessella_forward_args args = twin.args(call.args(), true);
    if (tessella_plan_make(Tagged(args, call.options()), &plan) == TESSELLA_OK) tessella_plan_free(plan);
    if (std::string(tessella_last_error()).find("no CUDA backend") != std::string::npos) {
      GTEST_SKIP() << tessella_last_error();
    }
  }

  // The sentence of tessella_forward, which must fail.
  static std::string error_of_call(const tessella_forward_args& args, const tessella_attention_options& options,
                                   void* stream = nullptr) {
    return tessella_forward(&args, &options, stream) == TESSELLA_OK ? "accepted" : tessella_last_error();
  }
  static void expect_error(const tessella_forward_args& args, const tessella_attention_options& options,
                           const std::string& message) {
    EXPECT_EQ(error_of_call(args, options), message);
  }
};

Case packed_case() {
  return {.batch = 3,
          .seqlen_q = 5,
          .seqlen_kv = 6,
          .packed_q = true,
          .packed_kv = true,
          .seqlens_q = true,
          .seqlens_kv = true,
          .leftpad_kv = true,
          .prefix = true};
}

Case slots_case() { return {.batch = 3, .seqlen_q = 5, .seqlen_kv = 6, .seqlens_kv = true, .cache_batch_idx = true}; }
Case paged_case() { return {.batch = 3, .seqlen_q = 5, .seqlen_kv = 6, .seqlens_kv = true, .page_size = 2}; }

TEST_F(GpuApi, TheFirstTensorOnAnotherDeviceIsNamed) {
  const Call call(packed_case());
  GpuTwin twin(call.blocks(), false);
  for (const bool shows_device : {true, false}) {
    tessella_forward_args args = twin.args(call.args(), shows_device);
    args.seqlens_kv = call.args().seqlens_kv;
    expect_error(args, call.options(), "forward: seqlens_kv is on the CPU, expected cuda:0 = the device of q");
    args = call.args();
    const tessella_forward_args on_gpu = twin.args(call.args(), shows_device);
    args.v = on_gpu.v;
    expect_error(args, call.options(), "forward: v is on cuda:0, expected the CPU = the device of q");
  }
}

TEST_F(GpuApi, AGpuThatIsNotThereIsNamed) {
  const Call call({});
  tessella_tensor q = *call.args().q;
  q.device_type = TESSELLA_CUDA;
  q.device_id = 99;
  tessella_forward_args args = call.args();
  args.q = &q;
  EXPECT_EQ(error_of_call(args, call.options()).rfind("forward: q is on cuda:99, and this process sees ", 0), 0u)
      << tessella_last_error();
}

TEST_F(GpuApi, KernelsOfTheCpuArePassedOver) {
  const Call call({});
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args args = twin.args(call.args(), true);
  tessella_attention_options options = call.options();
  options.kernel = "cpu.forward_baseline";
  expect_error(
      args, options,
      "forward: kernel is cpu.forward_baseline, which cannot run this call: runs on cpu tensors, and q is on cuda:0");
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    ASSERT_EQ(tessella_kernel_describe(idx, &info), TESSELLA_OK);
    const char* reason = "";
    ASSERT_EQ(tessella_kernel_refusal(idx, Tagged(args, call.options()), &reason), TESSELLA_OK)
        << tessella_last_error();
    if (std::string(info.device) == "cpu" && std::string(info.operation) == "forward") {
      EXPECT_STREQ(reason, "runs on cpu tensors, and q is on cuda:0") << info.name;
    }
  }
}

int32_t* values(const tessella_tensor* table) { return static_cast<int32_t*>(table->data); }

// Asked to, the API layer reads tables of the GPU and says what it would say of the host's.
TEST_F(GpuApi, CheckedValuesAreErrorsAsOnTheCpu) {
  struct Spoil {
    const char* name;
    std::function<void(const tessella_forward_args&)> apply;
    Case of = packed_case();
  };
  const Spoil spoils[] = {
      {"cu_seqlens_q", [](const auto& args) { values(args.cu_seqlens_q)[0] = 1; }},
      {"cu_seqlens_q", [](const auto& args) { values(args.cu_seqlens_q)[2] = -4; }},
      {"cu_seqlens_kv", [](const auto& args) { values(args.cu_seqlens_kv)[3] = 1'000'000; }},
      {"seqlens_q", [](const auto& args) { values(args.seqlens_q)[1] = -1; }},
      {"seqlens_kv", [](const auto& args) { values(args.seqlens_kv)[0] = 77; }},
      {"leftpad_kv", [](const auto& args) { values(args.leftpad_kv)[2] = 8; }},
      {"prefix_lengths", [](const auto& args) { values(args.prefix_lengths)[0] = -9; }},
      {"page_table",
       [](const auto& args) {
         values(args.seqlens_kv)[1] = 3;
         values(args.page_table)[4] = 10;
       },
       paged_case()},
      {"page_table",
       [](const auto& args) {
         values(args.seqlens_kv)[1] = 3;
         values(args.page_table)[4] = -1;
       },
       paged_case()},
      {"cache_batch_idx",
       [](const auto& args) {
         values(args.seqlens_kv)[1] = 3;
         values(args.cache_batch_idx)[1] = 5;
       },
       slots_case()},
  };
  for (const Spoil& spoil : spoils) {
    const Call call(spoil.of);
    spoil.apply(call.args());
    const std::string on_cpu = error_of_call(call.args(), call.options());
    GpuTwin twin(call.blocks(), false);
    const tessella_forward_args args = twin.args(call.args(), true);
    tessella_attention_options options = call.options();
    options.check_device_values = 1;
    const std::string on_gpu = error_of_call(args, options, twin.stream());  // behind the copies to the GPU
    EXPECT_EQ(on_gpu.rfind(std::string("forward: ") + spoil.name + "[", 0), 0u) << on_gpu;
    // A sequence may be longer than its tensor there: the bound is held first.
    if (std::string(spoil.name) != "cu_seqlens_kv") {
      EXPECT_EQ(on_gpu, on_cpu);
    }
  }
}

// The environment asks for the same, of every call.
TEST_F(GpuApi, TheEnvironmentAsksForValuesToBeChecked) {
  const Call call(packed_case());
  values(call.args().cu_seqlens_q)[0] = 1;
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args args = twin.args(call.args(), true);
  constexpr const char* kName = "TESSELLA_CHECK_DEVICE_VALUES";
  for (const auto& [value, begins] : {std::pair{"1", "forward: cu_seqlens_q[0]"},
                                      std::pair{"yes", "TESSELLA_CHECK_DEVICE_VALUES is 'yes', expected 0 or 1"}}) {
    ASSERT_EQ(::setenv(kName, value, 1), 0);
    const std::string message = error_of_call(args, call.options(), twin.stream());
    EXPECT_EQ(message.rfind(begins, 0), 0u) << message;
  }
  ::unsetenv(kName);
}

TEST_F(GpuApi, ABoundOfPackedLengthsIsHeld) {
  const Call call(packed_case());
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args args = twin.args(call.args(), true);
  tessella_attention_options options = call.options();
  options.check_device_values = 1;
  options.max_seqlen_q = 2;
  const std::string message = error_of_call(args, options, twin.stream());
  EXPECT_EQ(message.rfind("forward: cu_seqlens_q[", 0), 0u) << message;
  EXPECT_NE(message.find("the bound of lengths"), std::string::npos) << message;
}

TEST_F(GpuApi, ResultsOnTheGpuAreChecked) {
  for (const char* layout : {"bshd", "sliced", "bhsd"}) {
    Call call({.layout = layout,
               .batch = 2,
               .heads_q = 4,
               .heads_kv = 2,
               .seqlen_q = 9,
               .seqlen_kv = 12,
               .seqlens_kv = true,
               .window_right = 0,
               .document = true,
               .dense = "hk",
               .block_map = "bq",
               .block_q = 4,
               .block_kv = 5,
               .bias = "bhqk",
               .alibi = "bh",
               .sink = true,
               .dropout = 0.2,
               .memory_seed = true});
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();  // on the CPU
    GpuTwin twin(call.blocks(), false);
    const tessella_forward_args args = twin.args(call.args(), true);
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    ASSERT_EQ(tessella_check(Tagged(args, call.options()), 0, 1, &report), TESSELLA_OK) << tessella_last_error();
    EXPECT_EQ(report.passed, 1) << layout << ": error " << report.max_error;
    EXPECT_EQ(report.rows, 2 * 4 * 9);

    *static_cast<float*>(call.args().out->data) += 1;
    GpuTwin spoiled(call.blocks(), false);
    const tessella_forward_args wrong = spoiled.args(call.args(), true);
    ASSERT_EQ(tessella_check(Tagged(wrong, call.options()), 0, 1, &report), TESSELLA_OK) << tessella_last_error();
    EXPECT_EQ(report.passed, 0) << layout;
  }
}

// Rows of 8 and 4 bits and their scales are copied too.
TEST_F(GpuApi, ChecksQuantizedCaches) {
  for (const int32_t cache_dtype : {TESSELLA_F8E4M3FN, TESSELLA_I8, TESSELLA_I4}) {
    for (const char* scale : {"h", "th", "ph"}) {
      AppendCall call({.cache_dtype = cache_dtype, .scale = scale, .heads_q = 2, .page_size = 4, .rotary_dim = 32});
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();  // on the CPU
      const tessella_check_report report = call.check_on_gpu();
      EXPECT_EQ(report.passed, 1) << tessella_last_error();
      EXPECT_EQ(report.rows, 2 * 3 * (2 + 2 + 2));
      const tessella_tensor& v = *call.args().v;
      for (int64_t i = 0; i < bytes_of(cache_dtype, v.shape[0] * v.strides[0]) / 2; ++i) {
        static_cast<uint8_t*>(v.data)[i] ^= 0x55;
      }
      EXPECT_EQ(call.check_on_gpu().passed, 0);
    }
  }
}

TEST_F(GpuApi, GradientsAreChecked) {
  Case c = with_feature("dtype=f32 batch=2 heads_q=2 seqlen_q=9 seqlen_kv=13 seed=3", "bias=bhqk sink=1");
  c.gradients = "qkvbs";
  BackwardCall call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();  // on the CPU
  const auto passes = [&] {
    GpuTwin twin(call.blocks(), false);
    const tessella_backward_args args = twin.args(call.args(), true);
    const tessella_call tagged{sizeof tagged, TESSELLA_BACKWARD, &args, &call.options()};
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    EXPECT_EQ(tessella_check(&tagged, 0, 1, &report), TESSELLA_OK) << tessella_last_error();
    return report.passed != 0;
  };
  EXPECT_TRUE(passes());
  for (const char* gradient : {"d_sink", "d_bias", "dv"}) {
    call.set_values(gradient, 7);
    EXPECT_FALSE(passes()) << gradient;
  }
}

TEST_F(GpuApi, CheckingGapsOfGiBCopiesOnlyRows) {
  const cli::Gpu& gpu = cli::Gpu::open(0);
  constexpr int64_t kRows = 3, kDim = 8, kStride = int64_t{1} << 26;
  constexpr size_t kBytes = ((kRows - 1) * kStride + kDim) * sizeof(float);
  const cli::GpuMemory input(gpu, kBytes), output(gpu, kBytes);
  const cli::GpuStream stream(gpu);
  const auto zeros = [&](const cli::GpuMemory& memory) {
    for (int64_t row = 0; row < kRows; ++row) {
      gpu.fill(memory.data() + row * kStride * static_cast<int64_t>(sizeof(float)), 0, kDim * sizeof(float),
               stream.handle());
    }
    gpu.synchronize(stream.handle());
    return view(memory.data(), f32, {1, kRows, 1, kDim}, {0, kStride, 0, 1});
  };
  const TensorView in = zeros(input);
  const tessella_check_report report = check_forward({.q = in, .k = in, .v = in, .out = zeros(output)}, {}, 0);
  EXPECT_EQ(report.passed, 1);  // zeros attend to zeros: the mean of zeros
}

TEST_F(GpuApi, SourcesAndTheirArraysAreChecked) {
  const Call call({});
  GpuTwin twin(call.blocks(), false);
  tessella_forward_args args = twin.args(call.args(), true);
  tessella_attention_options options = call.options();
  tessella_tensor arrays[9];
  std::fill_n(arrays, 9, *args.q);
  args.mod_args = arrays;
  args.num_mod_args = 1;
  expect_error(args, options, "forward: mod_args is given, expected it beside score_mod or mask_mod");
  options.score_mod_gradient = "return 1;";
  args.num_mod_args = 0;
  expect_error(args, options, "forward: score_mod_gradient is given, expected it beside score_mod");
  options.score_mod = "return score;";
  args.num_mod_args = 9;
  expect_error(args, options, "forward: num_mod_args is 9, expected 0 to 8");
  args.num_mod_args = 2;
  arrays[1].strides[1] = 64;
  expect_error(args, options, "forward: mod_args[1].strides[1] is 64, expected 8: the array must be dense");
  arrays[1] = *args.q;
  arrays[1].dtype = TESSELLA_I64;
  expect_error(args, options, "forward: mod_args[1].dtype is i64, expected f32, bf16, f16, i32 or bool");
  arrays[1] = *call.args().q;
  expect_error(args, options, "forward: mod_args[1] is on the CPU, expected cuda:0 = the device of q");
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  args.num_mod_args = 0;
  EXPECT_EQ(tessella_check(Tagged(args, options), 0, 1, &report), TESSELLA_UNSUPPORTED);
}

// Of what a schedule is, before any plan of it: it lies beside the call's tensors, and apart from them.
TEST_F(GpuApi, AScheduleIsOfTheGpu) {
  const Call call({.batch = 3, .seqlen_q = 1, .seqlen_kv = 6, .seqlens_kv = true});
  GpuTwin twin(call.blocks(), false);
  tessella_forward_args args = twin.args(call.args(), true);
  int32_t words[4] = {};
  tessella_tensor schedule = TESSELLA_TENSOR1(words, TESSELLA_I32, 4);
  args.schedule = &schedule;
  schedule.device_type = TESSELLA_CPU;
  expect_error(args, call.options(), "forward: schedule is on the CPU, expected cuda:0 = the device of q");
  schedule = *args.seqlens_kv;
  expect_error(args, call.options(), "forward: schedule overlaps seqlens_kv, expected memory of its own");
}

TEST_F(GpuApi, DlpackSaysWhereAPointerIs) {
  const cli::GpuMemory memory(cli::Gpu::open(0), 64);
  void* managed = to_dlpack(view(memory.data(), f32, {4, 4}), true);
  const TensorView back = from_dlpack(managed, true);
  EXPECT_EQ(back.c_tensor().device_type, TESSELLA_CUDA);
  EXPECT_EQ(back.data(), memory.data());
  // struct DLManagedTensorVersioned {version; manager_ctx; deleter; ...}
  reinterpret_cast<void (*)(void*)>(static_cast<void**>(managed)[2])(managed);
}

}  // namespace
}  // namespace tessella::tests
