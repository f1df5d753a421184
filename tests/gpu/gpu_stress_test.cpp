// cuda.forward_sm90 under load: the same bits in every one of many calls, whatever blocks and copies do at what time.
// Query tiles meet one key tile or a few, so the warps of a block are at different query tiles. Memory is read as it
// comes: near and alone, or with a MiB between sequences and beside copies of gigabytes.
//
// TESSELLA_TEST_CALLS (100000): calls of each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cases/gpu_kernels.hpp"
#include "portable/float16.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {
namespace {

// Adds to *count the 16-byte chunks in which two arrays differ.
constexpr const char* kDifferencesPtx = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry count_differences(.param .u64 p_a, .param .u64 p_b, .param .u64 p_chunks, .param .u64 p_count) {
  .reg .pred %done, %same;
  .reg .u32 %a<4>, %b<4>, %t<4>, %num;
  .reg .u64 %pa, %pb, %n, %pc, %i, %step, %at;
  ld.param.u64 %pa, [p_a];
  ld.param.u64 %pb, [p_b];
  ld.param.u64 %n, [p_chunks];
  ld.param.u64 %pc, [p_count];
  mov.u32 %t0, %ctaid.x;
  mov.u32 %t1, %ntid.x;
  mov.u32 %t2, %tid.x;
  mov.u32 %t3, %nctaid.x;
  mad.wide.u32 %i, %t0, %t1, 0;
  cvt.u64.u32 %at, %t2;
  add.u64 %i, %i, %at;
  mul.wide.u32 %step, %t1, %t3;
next:
  setp.ge.u64 %done, %i, %n;
  @%done bra end;
  shl.b64 %at, %i, 4;
  add.u64 %at, %at, %pa;
  ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%at];
  shl.b64 %at, %i, 4;
  add.u64 %at, %at, %pb;
  ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%at];
  xor.b32 %a0, %a0, %b0;
  xor.b32 %a1, %a1, %b1;
  xor.b32 %a2, %a2, %b2;
  xor.b32 %a3, %a3, %b3;
  or.b32 %a0, %a0, %a1;
  or.b32 %a2, %a2, %a3;
  or.b32 %a0, %a0, %a2;
  setp.eq.u32 %same, %a0, 0;
  @!%same atom.global.add.u32 %num, [%pc], 1;
  add.u64 %i, %i, %step;
  bra next;
end:
  ret;
}
)";

constexpr const char* kKernel = "cuda.forward_sm90";

struct Load {
  const char* name;
  int64_t batch, heads, seqlen;
  bool is_causal, has_sink;
};
constexpr Load kLoads[] = {{"ManySequences", 1600, 1, 60, false, false},
                           {"Heads", 64, 8, 60, false, false},
                           {"Sinks", 64, 8, 60, false, true},
                           {"TwoHeads", 600, 2, 100, false, false},
                           {"Causal", 800, 1, 200, true, false}};

class GpuStress : public testing::TestWithParam<std::tuple<Load, int64_t>> {
 protected:
  void SetUp() override {
    if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
    for (const KernelInfo& kernel : gpu_kernels()) {
      if (kernel.name == kKernel && !kernel.unavailable.empty()) GTEST_SKIP() << kernel.unavailable;
    }
  }

  static int num_calls() {
    const char* calls = std::getenv("TESSELLA_TEST_CALLS");
    const int count = calls == nullptr ? 100000 : std::atoi(calls);
    EXPECT_GT(count, 0) << "TESSELLA_TEST_CALLS";
    return count;
  }
};

// Normal values in bf16, over and over in a GPU's memory, after a number of them that divides no stride.
void fill_with_normal(const cli::Gpu& gpu, const cli::GpuMemory& memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<portable::BFloat16> values(1000003);
  for (portable::BFloat16& value : values) value = portable::to_bfloat16(normal(random));
  const size_t bytes = values.size() * sizeof values[0];
  gpu.copy_to_gpu(memory.data(), values.data(), std::min(bytes, memory.size()), nullptr);
  for (size_t at = bytes; at < memory.size(); at += bytes) {
    gpu.copy_on_gpu(memory.data() + at, memory.data(), std::min(bytes, memory.size() - at), nullptr);
  }
  gpu.synchronize(nullptr);
}

// q, k, v or out. spread: a MiB lies between sequences.
struct Operand {
  cli::GpuMemory memory;
  tessella_tensor tensor;

  Operand(const cli::Gpu& gpu, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim, bool spread)
      : tensor TESSELLA_TENSOR4(nullptr, TESSELLA_BF16, batch, rows, heads, head_dim) {
    if (spread) tensor.strides[0] += (1 << 20) / 2;
    memory = cli::GpuMemory(gpu, static_cast<size_t>(batch * tensor.strides[0]) * 2);
    tensor.data = memory.data();
    tensor.device_type = TESSELLA_CUDA;
  }
};

void expect_same_bits(const Load& load, int64_t head_dim, bool spread, bool beside_copies, int num_calls) {
  const cli::Gpu& gpu = cli::Gpu::open(0);
  const cli::GpuStream stream(gpu), other(gpu);
  const Operand q(gpu, load.batch, load.seqlen, load.heads, head_dim, spread);
  const Operand k(gpu, load.batch, load.seqlen, load.heads, head_dim, spread);
  const Operand v(gpu, load.batch, load.seqlen, load.heads, head_dim, spread);
  const Operand out(gpu, load.batch, load.seqlen, load.heads, head_dim, false);
  fill_with_normal(gpu, q.memory, 1);
  fill_with_normal(gpu, k.memory, 2);
  fill_with_normal(gpu, v.memory, 3);
  const cli::GpuMemory sinks(gpu, static_cast<size_t>(load.heads) * 4);
  const std::vector<float> zeros(static_cast<size_t>(load.heads), 0.0f);
  gpu.copy_to_gpu(sinks.data(), zeros.data(), sinks.size(), nullptr);
  tessella_tensor sink = {.data = sinks.data(), .dtype = TESSELLA_F32, .ndim = 1, .device_type = TESSELLA_CUDA};
  sink.shape[0] = load.heads;
  sink.strides[0] = 1;
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  args.q = &q.tensor;
  args.k = &k.tensor;
  args.v = &v.tensor;
  args.out = &out.tensor;
  if (load.has_sink) args.sink = &sink;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  options.kernel = kKernel;
  if (load.is_causal) options.window_right = 0;

  const cli::GpuMemory first(gpu, out.memory.size()), counted(gpu, 4);
  const cli::GpuMemory from(gpu, size_t{1} << 30), to(gpu, from.size());
  gpu.fill(counted.data(), 0, 4, stream.handle());
  void* const kernel = gpu.load_kernel(kDifferencesPtx, "count_differences");
  constexpr int kCallsAtOnce = 500;
  for (int done = 0; done < num_calls; done += kCallsAtOnce) {
    for (int i = 0; i < kCallsAtOnce; ++i) {
      if (beside_copies && i % 25 == 0) gpu.copy_on_gpu(to.data(), from.data(), from.size(), other.handle());
      gpu.fill(out.memory.data(), 0xFF, out.memory.size(), stream.handle());
      ASSERT_EQ(tessella_forward(&args, &options, stream.handle()), TESSELLA_OK) << tessella_last_error();
      if (done + i == 0) {
        gpu.copy_on_gpu(first.data(), out.memory.data(), first.size(), stream.handle());
        continue;
      }
      const std::byte *a = first.data(), *b = out.memory.data(), *count = counted.data();
      uint64_t chunks = first.size() / 16;
      void* arguments[] = {&a, &b, &chunks, &count};
      gpu.launch_kernel(kernel, static_cast<unsigned>(gpu.num_multiprocessors()) * 4, 512, stream.handle(), arguments);
    }
    gpu.synchronize(other.handle());
    uint32_t differences = 0;
    gpu.copy_to_host(&differences, counted.data(), 4, stream.handle());
    ASSERT_EQ(differences, 0u) << "chunks of 16 bytes, in one of " << done + kCallsAtOnce << " calls";
  }
}

TEST_P(GpuStress, TheSameBitsInEveryCall) {
  const auto& [load, head_dim] = GetParam();
  expect_same_bits(load, head_dim, false, false, num_calls());
}
TEST_P(GpuStress, TheSameBitsBesideCopiesOfSpreadMemory) {
  const auto& [load, head_dim] = GetParam();
  expect_same_bits(load, head_dim, true, true, num_calls());
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuStress,
                         testing::Combine(testing::ValuesIn(kLoads), testing::Values(64, 96, 128, 192, 256)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "HeadDim" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace tessella::tests
