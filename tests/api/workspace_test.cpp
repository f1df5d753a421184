// A workspace lies apart from all that its call points to, and serves one run at a time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cases/small_call.hpp"
#include "tessella/attention.hpp"
#include "tessella/merge.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

// What a run says that is an error; "" where it runs.
template <typename Run>
std::string invalid(const Run& run) {
  try {
    run();
    return "";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
}

// Memory of a plan's runs, with room behind it.
class OwnWorkspace {
 public:
  explicit OwnWorkspace(const ts::Workspace& size) : bytes_(size.scratch_bytes + 4096) {
    workspace = size;
    EXPECT_EQ(size.state_bytes, 0u);
    workspace.scratch = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
  }
  ts::Workspace workspace;

 private:
  std::vector<char> bytes_;
};

TEST(Workspace, OverlapsNothingOfTheCall) {
  SmallCall call;
  std::vector<int32_t> lengths(kBatch, 3);
  std::vector<int64_t> number(1, 5);
  std::vector<float> values(kHeadsQ, 0.5f);
  std::vector<char> visible(kSeqlenQ * kSeqlenKv, 1);
  call.args.seqlens_kv = ts::view(lengths.data(), ts::i32, {kBatch});
  call.args.alibi_slopes = ts::view(values.data(), ts::f32, {kHeadsQ});
  call.args.sink = ts::view(values.data(), ts::f32, {kHeadsQ});
  call.args.seed = ts::view(number.data(), ts::i64, {1});
  call.args.offset = ts::view(number.data(), ts::i64, {1});
  call.options.dropout = 0.5f;
  const ts::TensorView dense = ts::view(visible.data(), ts::boolean, {kSeqlenQ, kSeqlenKv});
  const ts::TensorView documents_q = ts::view(call.q.data(), ts::i32, {kBatch, kSeqlenQ});
  const ts::TensorView documents_kv = ts::view(call.k.data(), ts::i32, {kBatch, kSeqlenKv});
  call.options.mask = ts::Mask::dense(dense) & ts::Mask::document(documents_q, documents_kv);
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  ASSERT_GT(plan.workspace_size().scratch_bytes, 2048u);
  OwnWorkspace own(plan.workspace_size());
  const ts::Workspace& workspace = own.workspace;
  plan.run(call.args, workspace);

  // Each in turn lies with its first element in the scratch's last, or right behind it.
  struct Operand {
    std::string name;
    void (*set)(ts::ForwardArgs&, ts::AttentionOptions&, const ts::TensorView&);
    ts::TensorView like;
  };
#define MEMBER(name)                                                            \
  {                                                                             \
#name, [](ts::ForwardArgs & args, ts::AttentionOptions&,                    \
              const ts::TensorView& view) { args.name = view; }, call.args.name \
  }
  const Operand operands[] = {
      MEMBER(q),    MEMBER(k),    MEMBER(v),      MEMBER(out), MEMBER(lse), MEMBER(seqlens_kv), MEMBER(alibi_slopes),
      MEMBER(sink), MEMBER(seed), MEMBER(offset),
  };
#undef MEMBER
  for (const Operand& operand : operands) {
    for (const bool behind : {false, true}) {
      SmallCall moved = call;
      tessella_tensor tensor = operand.like.c_tensor();
      auto* end = static_cast<char*>(workspace.scratch) + workspace.scratch_bytes;
      tensor.data = behind ? end : end - 64;
      std::vector<char> zeros(1024, 0);
      std::memcpy(tensor.data, zeros.data(), zeros.size());
      operand.set(moved.args, moved.options, ts::TensorView(tensor));
      if (behind) {
        EXPECT_EQ(invalid([&] { plan.run(moved.args, call.options, &workspace); }), "") << operand.name;
      } else {
        EXPECT_EQ(invalid([&] { plan.run(moved.args, call.options, &workspace); }),
                  "plan_run: workspace.scratch overlaps " + operand.name + ", expected memory of its own");
      }
    }
  }
  ts::AttentionOptions masked = call.options;
  const ts::TensorView taken = ts::view(static_cast<char*>(workspace.scratch) + 64, ts::boolean, {kSeqlenQ, kSeqlenKv});
  masked.mask = ts::Mask::dense(taken) & ts::Mask::document(documents_q, documents_kv);
  EXPECT_EQ(invalid([&] { plan.run(call.args, masked, &workspace); }),
            "plan_run: workspace.scratch overlaps dense_mask, expected memory of its own");
}

TEST(Workspace, OfAMergeOverlapsNothing) {
  std::vector<float> outs(2 * 40 * 8, 1.0f), lses(2 * 40, 0.0f), out(40 * 8, -7.0f), lse(40, -7.0f);
  const auto rows = [](float* data) { return ts::view(data, ts::f32, {1, 20, 2, 8}); };
  const auto sums = [](float* data) { return ts::view(data, ts::f32, {1, 2, 20}); };
  std::vector<ts::State> states = {{rows(outs.data()), sums(lses.data())},
                                   {rows(outs.data() + 40 * 8), sums(lses.data() + 40)}};
  const ts::MergePlan plan = ts::plan_merge(states, rows(out.data()), sums(lse.data()));
  OwnWorkspace own(plan.workspace_size());
  const ts::Workspace& workspace = own.workspace;
  plan.run(states, rows(out.data()), sums(lse.data()), workspace);
  EXPECT_EQ(out[0], 1);
  auto* taken = static_cast<float*>(workspace.scratch);
  EXPECT_EQ(invalid([&] { plan.run(states, rows(taken), sums(lse.data()), workspace); }),
            "plan_run: workspace.scratch overlaps out, expected memory of its own");
  EXPECT_EQ(invalid([&] { plan.run(states, rows(out.data()), sums(taken), workspace); }),
            "plan_run: workspace.scratch overlaps lse, expected memory of its own");
  states[1].lse = sums(taken);
  EXPECT_EQ(invalid([&] { plan.run(states, rows(out.data()), sums(lse.data()), workspace); }),
            "plan_run: workspace.scratch overlaps lses[1], expected memory of its own");
}

// A call of some seconds, which the flag ends.
class LongCall {
 public:
  LongCall() : input_(kRows * kDim, 0), out_(kRows * kHeads * kDim) {
    const auto input = ts::view(input_.data(), ts::f32, {1, kRows, kHeads, kDim}, {0, kDim, 0, 1});
    args = {.q = input, .k = input, .v = input, .out = ts::view(out_.data(), ts::f32, {1, kRows, kHeads, kDim})};
    options = {.num_threads = 1, .cancel = &cancel};
  }
  std::atomic<int32_t> cancel{0};
  ts::ForwardArgs args;
  ts::AttentionOptions options;

  // The same with a few rows, for a plan of the whole.
  ts::ForwardArgs few() {
    const auto input = ts::view(input_.data(), ts::f32, {1, 4, kHeads, kDim}, {0, kDim, 0, 1});
    return {.q = input, .k = input, .v = input, .out = ts::view(few_.data(), ts::f32, {1, 4, kHeads, kDim})};
  }

 private:
  static constexpr int64_t kRows = 8192, kHeads = 32, kDim = 64;
  std::vector<float> input_, out_;
  std::vector<float> few_ = std::vector<float>(4 * kHeads * kDim);
};

TEST(Workspace, ServesOneRunAtATime) {
  LongCall call;
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  OwnWorkspace own(plan.workspace_size());
  std::atomic<int32_t> ended_as{-1};
  std::jthread other([&] {
    // Until it is this thread that has the workspace.
    for (;;) {
      try {
        plan.run(call.args, own.workspace);
        ended_as = 0;
        return;
      } catch (const ts::Error& error) {
        if (error.code() == ts::ErrorCode::invalid_argument) continue;
        ended_as = static_cast<int32_t>(error.code());
        return;
      }
    }
  });
  const ts::ForwardArgs few = call.few();
  const ts::AttentionOptions options{.num_threads = 1};
  std::string said;
  while (said.empty() && ended_as < 0) {
    said = invalid([&] { plan.run(few, options, &own.workspace); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(said,
            "plan_run: workspace.scratch is in use by another run, expected a workspace for each of the runs at one "
            "time");
  // One that has only its last bytes in common is taken as well, one right behind it is not.
  ts::Workspace meets = own.workspace;
  meets.scratch = static_cast<char*>(meets.scratch) + (meets.scratch_bytes - 1) / 64 * 64;
  EXPECT_NE(invalid([&] { plan.run(few, options, &meets); }), "");
  OwnWorkspace another(plan.workspace_size());
  EXPECT_EQ(invalid([&] { plan.run(few, options, &another.workspace); }), "");
  call.cancel = 1;
  other.join();
  EXPECT_EQ(ended_as, TESSELLA_CANCELLED);
  // A run that ended by an exception has let go of it.
  EXPECT_EQ(invalid([&] { plan.run(few, options, &own.workspace); }), "");
}

// The thread that works with it is not there.
TEST(Workspace, IsFreeInAForkedChild) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer does not follow a fork of many threads";
#endif
  LongCall call;
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  OwnWorkspace own(plan.workspace_size());
  const ts::AttentionOptions options{.num_threads = 1};
  const ts::ForwardArgs few = call.few();
  const auto run_few = [&] { plan.run(few, options, &own.workspace); };
  std::jthread other([&] {
    while (call.cancel == 0) {  // until it is this thread that has the workspace
      try {
        plan.run(call.args, own.workspace);
      } catch (const ts::Error&) {
      }
    }
  });
  while (invalid(run_few).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(invalid(run_few).empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(invalid(run_few), "");
  call.cancel = 1;
}

// q, k, v and out side by side in one buffer, whatever axis has one element.
TEST(Interleaved, TensorsOfOneBuffer) {
  for (const int64_t batch : {1, 2}) {
    for (const int64_t rows : {1, 3}) {
      for (const int64_t heads : {1, 2}) {
        std::vector<float> buffer(static_cast<size_t>(batch * rows * 4 * heads * 8), 1);
        const auto slice = [&](int64_t idx) {
          return ts::view(buffer.data() + idx * heads * 8, ts::f32, {batch, rows, heads, 8},
                          {rows * 4 * heads * 8, 4 * heads * 8, 8, 1});
        };
        const ts::ForwardArgs args{.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(3)};
        EXPECT_EQ(invalid([&] { ts::forward(args); }), "") << batch << " " << rows << " " << heads;
        const ts::ForwardArgs same{.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(2)};
        EXPECT_EQ(invalid([&] { ts::forward(same); }), "forward: out overlaps v, expected memory of its own");
      }
    }
  }
}

TEST(Interleaved, BatchesAndHeadsOfOneBuffer) {
  std::vector<float> buffer(4 * 2 * 3 * 2 * 8, 1);
  // (rows, 4, batch, heads, head_dim) and (batch, heads, 4, rows, head_dim) memory.
  const auto rows_first = [&](int64_t idx) {
    return ts::view(buffer.data() + idx * 2 * 2 * 8, ts::f32, {2, 3, 2, 8}, {2 * 8, 4 * 2 * 2 * 8, 8, 1});
  };
  const auto heads_first = [&](int64_t idx) {
    return ts::view(buffer.data() + idx * 3 * 8, ts::f32, {2, 3, 2, 8}, {2 * 4 * 3 * 8, 8, 4 * 3 * 8, 1});
  };
  EXPECT_EQ(
      invalid([&] { ts::forward({.q = rows_first(0), .k = rows_first(1), .v = rows_first(2), .out = rows_first(3)}); }),
      "");
  EXPECT_EQ(invalid([&] {
              ts::forward({.q = heads_first(0), .k = heads_first(1), .v = heads_first(2), .out = heads_first(3)});
            }),
            "");
  EXPECT_EQ(invalid([&] {
              ts::forward({.q = heads_first(0), .k = heads_first(1), .v = heads_first(2), .out = rows_first(3)});
            }),
            "forward: out overlaps q, expected memory of its own");
}

TEST(Interleaved, StatesOfOneBuffer) {
  std::vector<float> outs(2 * 3 * 2 * 8, 1), lses(2 * 3 * 2, 0);
  const auto out = [&](int64_t idx) {
    return ts::view(outs.data() + idx * 2 * 8, ts::f32, {2, 1, 2, 8}, {3 * 2 * 8, 3 * 2 * 8, 8, 1});
  };
  const auto lse = [&](int64_t idx) { return ts::view(lses.data() + idx * 2, ts::f32, {2, 2, 1}, {3 * 2, 1, 1}); };
  EXPECT_EQ(invalid([&] { ts::merge({{out(0), lse(0)}, {out(1), lse(1)}}, out(2), lse(2)); }), "");
}

// A seed that the call reads before it writes would be gone after it.
TEST(Overlaps, SeedAndOffsetInOut) {
  for (const char* name : {"seed", "offset"}) {
    SmallCall call;
    call.options.dropout = 0.5f;
    const ts::TensorView number = ts::view(call.out.data() + 2, ts::i64, {1});
    (name == std::string("seed") ? call.args.seed : call.args.offset) = number;
    EXPECT_EQ(invalid([&] { ts::forward(call.args, call.options); }),
              "forward: out overlaps " + std::string(name) + ", expected memory of its own");
    for (const float value : call.out) ASSERT_EQ(value, -7.0f);
  }
}

}  // namespace
