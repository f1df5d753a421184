// Decoding on a GPU: the same bits in every run whatever blocks arrive last, graphs replayed while caches grow, and
// two streams at once. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/poisoned_workspace.hpp"
#include "cases/tagged.hpp"
#include "tessella/error.hpp"

namespace tessella::tests {
namespace {

constexpr int kRuns = 300;

struct Named {
  const char* name;
  const char* line;
};
void PrintTo(const Named& named, std::ostream* stream) { *stream << named.name; }

constexpr Named kCalls[] = {
    {"OneBlock", "batch=8 heads_q=16 heads_kv=2 seqlen_q=1 seqlen_kv=3000 num_splits=1"},
    {"Cluster", "batch=8 heads_q=16 heads_kv=2 seqlen_q=1 seqlen_kv=3000 num_splits=8"},
    {"MetInMemory", "batch=8 heads_q=16 heads_kv=2 seqlen_q=1 seqlen_kv=3000 seqlens_kv=1 num_splits=5"},
    {"ClustersMetInMemory", "batch=3 heads_q=16 heads_kv=2 seqlen_q=1 seqlen_kv=9000 num_splits=24"},
    {"Automatic", "batch=2 heads_q=16 heads_kv=2 seqlen_q=4 seqlen_kv=20000 window_right=0"},
    {"ManyRows", "batch=4 heads_q=16 heads_kv=2 seqlen_q=8 seqlen_kv=3000 window_right=0 spread=8 num_splits=12"},
    {"Pages",
     "batch=8 heads_q=8 heads_kv=2 seqlen_q=2 seqlen_kv=2000 page_size=16 seqlens_kv=1 leftpad_kv=1 num_splits=10"},
    {"Drafts", "dtype=f16 batch=4 heads_q=8 heads_kv=2 seqlen_q=8 seqlen_kv=2000 draft_mask=b num_splits=6"},
    {"Floats",
     "dtype=f32 batch=4 heads_q=8 heads_kv=2 seqlen_q=2 seqlen_kv=2000 window_left=900 window_right=0 keep_first=40 "
     "num_splits=6"},
    {"BatchInvariant", "batch=2 heads_q=8 heads_kv=2 seqlen_q=9 seqlen_kv=9000 batch_invariant=1 few=1"},
    {"Float8", "kv_dtype=f8e4m3fn kv_scale=h batch=8 heads_q=16 heads_kv=2 seqlen_q=1 seqlen_kv=3000 num_splits=8"},
    {"Float8ManyRows",
     "dtype=f16 kv_dtype=f8e4m3fn kv_scale=th batch=4 heads_q=16 heads_kv=2 seqlen_q=8 seqlen_kv=3000 window_right=0 "
     "spread=8 num_splits=12"},
    {"Int8",
     "kv_dtype=i8 kv_scale=th batch=8 heads_q=8 heads_kv=2 seqlen_q=2 seqlen_kv=2000 page_size=16 seqlens_kv=1 "
     "leftpad_kv=1 num_splits=10"},
    {"Int4",
     "dtype=f16 kv_dtype=i4 kv_scale=ph batch=4 heads_q=8 heads_kv=2 seqlen_q=2 seqlen_kv=2000 page_size=64 "
     "seqlens_kv=1 num_splits=6"},
    {"Int8Floats",
     "dtype=f32 kv_dtype=i8 kv_scale=th batch=4 heads_q=16 heads_kv=2 seqlen_q=4 seqlen_kv=2000 page_size=16 "
     "window_right=0 spread=8 num_splits=6"},
    {"Mla",
     "batch=4 heads_q=16 heads_kv=1 seqlen_q=1 seqlen_kv=6000 head_dim_qk=576 head_dim_v=512 v_in_k=1 num_splits=16"},
    {"MlaOf128Heads",
     "batch=3 heads_q=128 heads_kv=1 seqlen_q=2 seqlen_kv=3000 window_right=0 head_dim_qk=576 head_dim_v=512 v_in_k=1"},
    {"MlaPages",
     "dtype=f16 batch=6 heads_q=32 heads_kv=1 seqlen_q=1 seqlen_kv=3000 page_size=64 seqlens_kv=1 spread=8 "
     "head_dim_qk=576 head_dim_v=512 v_in_k=1 num_splits=5"},
    {"ValuesInKeys", "batch=4 heads_q=8 heads_kv=2 seqlen_q=1 seqlen_kv=2000 v_in_k=1 num_splits=6"},
    {"UnifiedMax",
     "kernel=cuda.decode_unified_max dtype=f16 batch=2 heads_q=8 heads_kv=2 seqlen_q=2 seqlen_kv=9000 mean=-20"},
};

Case case_of(const char* line, const char* more = "") {
  return parse(std::string("kernel=cuda.decode dtype=bf16 head_dim_qk=128 head_dim_v=128 seed=2 ") + line + more);
}

// A call on the GPU with its plan and a workspace.
class PlannedCall {
 public:
  explicit PlannedCall(const Case& c) : call(c), twin(call.blocks(), true), args(twin.args(call.args(), true)) {
    detail::check(tessella_plan_make(Tagged(args, call.options()), &plan_));
    tessella_plan_workspace(plan_, &workspace_.state_bytes, &workspace_.scratch_bytes);
    state_ = cli::GpuMemory(twin.gpu(), workspace_.state_bytes + 1);
    scratch_ = cli::GpuMemory(twin.gpu(), workspace_.scratch_bytes + 1);
    workspace_.state = state_.data();
    workspace_.scratch = scratch_.data();
    detail::check(tessella_plan_initialize(plan_, &workspace_, twin.stream()));
    twin.gpu().synchronize(twin.stream());
  }
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;
  ~PlannedCall() { tessella_plan_free(plan_); }

  tessella_status run(void* stream) const {
    return tessella_plan_run(plan_, Tagged(args, call.options()), &workspace_, stream);
  }
  void poison_scratch() const { twin.gpu().fill(scratch_.data(), 0xFF, scratch_.size(), twin.stream()); }
  bool state_is_zero() const {
    std::vector<std::byte> state(workspace_.state_bytes);
    if (!state.empty()) twin.gpu().copy_to_host(state.data(), state_.data(), state.size(), twin.stream());
    return std::ranges::all_of(state, [](std::byte b) { return b == std::byte{0}; });
  }

  Call call;
  GpuTwin twin;
  tessella_forward_args args;

 private:
  tessella_plan* plan_ = nullptr;
  tessella_workspace workspace_{};
  cli::GpuMemory state_, scratch_;
};

class GpuDecode : public testing::TestWithParam<Named> {
 protected:
  void SetUp() override {
    if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  }
};

TEST_P(GpuDecode, HasTheSameBits) {
  PlannedCall planned(case_of(GetParam().line));
  std::vector<std::byte> expected;
  for (int run = 0; run < kRuns; ++run) {
    planned.twin.poison_outputs();
    planned.poison_scratch();
    ASSERT_EQ(planned.run(planned.twin.stream()), TESSELLA_OK) << tessella_last_error();
    const std::vector<std::byte> got = planned.twin.outputs();
    if (run == 0) expected = got;
    ASSERT_TRUE(got == expected) << "run " << run << " has other bits than the first";
  }
  EXPECT_TRUE(planned.state_is_zero());
  ASSERT_EQ(planned.twin.download(), "");
  EXPECT_EQ(planned.call.check(), "");
}

// Captured once; replays read lengths that have grown.
TEST_P(GpuDecode, IsReplayedWhileCachesGrow) {
  PlannedCall planned(case_of(GetParam().line, " seqlens_kv=1"));
  const tessella_tensor& host = *planned.call.args().seqlens_kv;
  auto* lengths = static_cast<int32_t*>(host.data);
  const std::vector<int32_t> longest(lengths, lengths + host.shape[0]);
  const size_t bytes = longest.size() * sizeof(int32_t);
  const cli::Gpu& gpu = planned.twin.gpu();
  void* stream = planned.twin.stream();
  const cli::GpuGraph graph(gpu, stream, [&] { EXPECT_EQ(planned.run(stream), TESSELLA_OK) << tessella_last_error(); });
  constexpr int kReplays = 6;
  for (int replay = 0; replay <= kReplays; ++replay) {
    for (size_t i = 0; i < longest.size(); ++i) {
      const int32_t least = planned.call.args().leftpad_kv == nullptr
                                ? 0
                                : static_cast<const int32_t*>(planned.call.args().leftpad_kv->data)[i];
      lengths[i] = least + static_cast<int32_t>(int64_t{longest[i] - least} * replay / kReplays);
    }
    gpu.copy_to_gpu(planned.args.seqlens_kv->data, lengths, bytes, stream);
    planned.twin.poison_outputs();
    planned.poison_scratch();
    graph.launch(stream);
    ASSERT_EQ(planned.twin.download(), "");
    ASSERT_EQ(planned.call.check(), "") << "replay " << replay;
  }
  EXPECT_TRUE(planned.state_is_zero());
}

// Calls that run at once have nothing in common.
TEST_P(GpuDecode, RunsOnTwoStreamsAtOnce) {
  PlannedCall first(case_of(GetParam().line)), second(case_of(GetParam().line, " spread=2"));
  const cli::Gpu& gpu = first.twin.gpu();
  std::vector<std::byte> expected[2];
  PlannedCall* const calls[] = {&first, &second};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(calls[i]->run(calls[i]->twin.stream()), TESSELLA_OK) << tessella_last_error();
    expected[i] = calls[i]->twin.outputs();
  }
  const cli::GpuStream one(gpu), other(gpu);
  void* const streams[] = {one.handle(), other.handle()};
  for (int round = 0; round < 10; ++round) {
    for (PlannedCall* call : calls) {
      call->twin.poison_outputs();
      call->poison_scratch();
    }
    gpu.synchronize(first.twin.stream());
    for (int run = 0; run < 30; ++run) {
      for (int i = 0; i < 2; ++i) ASSERT_EQ(calls[i]->run(streams[i]), TESSELLA_OK) << tessella_last_error();
    }
    for (int i = 0; i < 2; ++i) {
      gpu.synchronize(streams[i]);
      ASSERT_TRUE(calls[i]->twin.outputs() == expected[i]) << "call " << i << " has other bits beside the other";
    }
  }
  for (PlannedCall* call : calls) {
    EXPECT_TRUE(call->state_is_zero());
    EXPECT_EQ(call->twin.download(), "");
    EXPECT_EQ(call->call.check(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, GpuDecode, testing::ValuesIn(kCalls),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessella::tests
