// What only the GPU's kernels do: score_mod and mask_mod, dropout's bits beside the CPU's, plans for alignments, graph
// captures.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cases/call.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/tagged.hpp"

namespace tessella::tests {
namespace {

class Gpu : public EachKernel {
 protected:
  Case base() const {
    return {.kernel = GetParam().name,
            .dtype = "bf16",
            .batch = 2,
            .heads_q = 4,
            .heads_kv = 2,
            .seqlen_q = 100,
            .seqlen_kv = 130,
            .head_dim_qk = 64,
            .head_dim_v = 64,
            .seed = 2};
  }
};

// Row j of v is the unit vector of j: out holds the probabilities, and 0 where one was dropped.
std::vector<float> dropped_probabilities(const std::string& kernel) {
  constexpr int64_t kBatch = 2, kHeads = 3, kQueries = 70, kKeys = 128;
  Call call({.kernel = kernel,
             .dtype = "bf16",
             .out_dtype = "f32",
             .batch = kBatch,
             .heads_q = kHeads,
             .heads_kv = kHeads,
             .seqlen_q = kQueries,
             .seqlen_kv = kKeys,
             .head_dim_qk = 32,
             .head_dim_v = kKeys,
             .dropout = 0.4,
             .spread = 0.1,
             .seed = 11});
  auto* v = static_cast<uint16_t*>(call.args().v->data);
  constexpr uint16_t kOne = 0x3F80;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t c = 0; c < kKeys; ++c) v[((b * kKeys + j) * kHeads + h) * kKeys + c] = c == j ? kOne : 0;
      }
    }
  }
  EXPECT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
  std::vector<float> out(static_cast<size_t>(kBatch * kQueries * kHeads * kKeys));
  std::memcpy(out.data(), call.args().out->data, out.size() * sizeof(float));
  return out;
}

TEST_P(Gpu, DropsWhatTheCpuDrops) {
  const std::vector<float> on_gpu = dropped_probabilities(GetParam().name);
  const std::vector<float> on_cpu = dropped_probabilities("cpu.forward_baseline");
  ASSERT_EQ(on_gpu.size(), on_cpu.size());
  size_t dropped = 0;
  for (size_t at = 0; at < on_cpu.size(); ++at) {
    ASSERT_EQ(on_gpu[at] == 0, on_cpu[at] == 0) << "element " << at;
    dropped += on_cpu[at] == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(on_cpu.size()), 0.4, 0.02);
}

using Change = std::function<void(tessella_forward_args&, tessella_attention_options&)>;

// Runs the call with its arguments and options changed. "" or what went wrong.
std::string run_changed(const Call& call, const Change& change) {
  tessella_forward_args args = call.args();
  tessella_attention_options options = call.options();
  change(args, options);
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args on_gpu = twin.args(args, true);
  if (tessella_forward(&on_gpu, &options, twin.stream()) != TESSELLA_OK) return tessella_last_error();
  return twin.download();
}

// Holds what the changed call computes against what the unchanged one means.
void expect_same_meaning(const Case& c, const Change& change) {
  const Call call(c);
  ASSERT_EQ(run_changed(call, change), "") << to_string(c);
  EXPECT_EQ(call.check(), "") << to_string(c);
}

// The call's ALiBi by this score_mod.
Change alibi_as(const char* source) {
  return [source](tessella_forward_args& args, tessella_attention_options& options) {
    args.mod_args = args.alibi_slopes;
    args.num_mod_args = 1;
    args.alibi_slopes = nullptr;
    options.score_mod = source;
  };
}

// Masks decide tiles, and so bits: a call is not computed by the plan of another of the same shape.
TEST_P(Gpu, ACallHasTheBitsOfItsOwnPlan) {
  Case c = base();
  c.seqlen_q = c.seqlen_kv = 2048;
  c.head_dim_qk = c.head_dim_v = 128;
  c.window_right = 0;
  ASSERT_EQ(Call(c).run_plain(), TESSELLA_OK) << tessella_last_error();
  c.window_left = 100;
  Call direct(c);
  ASSERT_EQ(direct.run_plain(), TESSELLA_OK) << tessella_last_error();
  c.plan = true;
  Call planned(c);
  ASSERT_EQ(planned.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(direct.results(), planned.results());
}

TEST_P(Gpu, AScoreModMayBeAlibi) {
  Case c = base();
  c.alibi = "h";
  c.seqlen_kv = c.seqlen_q;  // so that the distance needs no lengths
  c.window_left = 30;
  c.window_right = 0;
  expect_same_meaning(
      c, alibi_as("const float distance = q > k ? q - k : k - q; return score - arrays.f32(0)[h] * distance;"));
  c.seqlen_q = c.seqlen_kv = 500;  // tiles within the lengths and beyond them
  for (const auto& [head_dim_qk, head_dim_v] : {std::pair{64, 64}, {128, 128}, {192, 128}}) {
    c.head_dim_qk = head_dim_qk;
    c.head_dim_v = head_dim_v;
    for (const int64_t window_left : {30, 400, -1}) {
      c.window_left = window_left;
      expect_same_meaning(c, alibi_as("return score - arrays.f32(0)[h] * fabsf(q - k);"));
      expect_same_meaning(c, alibi_as("return score - arrays.f32(0)[h] * fabsf(q_minus_k);"));
    }
  }
}

TEST_P(Gpu, AScoreModIsOfNaturalUnits) {
  Case c = base();
  c.softcap = 20;
  expect_same_meaning(c, [](tessella_forward_args&, tessella_attention_options& options) {
    options.softcap = 0;
    options.score_mod = "return 20.0f * tanhf(score / 20.0f);";
  });
}

TEST_P(Gpu, AMaskModMayBeAMask) {
  Case c = base();
  c.causal_top_left = true;
  expect_same_meaning(c, [](tessella_forward_args&, tessella_attention_options& options) {
    options.causal_top_left = 0;
    options.mask_mod = "return k <= q;";
  });
  Case documents = base();
  documents.document = true;
  expect_same_meaning(documents, [](tessella_forward_args& args, tessella_attention_options& options) {
    static tessella_tensor arrays[2];
    arrays[0] = *args.document_ids_q;
    arrays[1] = *args.document_ids_kv;
    args.document_ids_q = args.document_ids_kv = nullptr;
    args.mod_args = arrays;
    args.num_mod_args = 2;
    options.mask_mod =
        "const int rows_q = arrays.count(0) / 2; const int rows_kv = arrays.count(1) / 2;"  // batch is 2
        "return arrays.i32(0)[b * rows_q + q] == arrays.i32(1)[b * rows_kv + k];";
  });
}

TEST_P(Gpu, ASourceThatDoesNotCompileIsAnErrorWithItsLog) {
  Call call(base());
  tessella_attention_options options = call.options();
  options.score_mod = "return no_such_name;";
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args args = twin.args(call.args(), true);
  EXPECT_EQ(tessella_forward(&args, &options, twin.stream()), TESSELLA_COMPILE);
  EXPECT_NE(std::string(tessella_last_error()).find("no_such_name"), std::string::npos) << tessella_last_error();
}

TEST_P(Gpu, APlanIsForItsSourcesAndAlignment) {
  Call call(base());
  Case odd_case = base();
  odd_case.shift = 1;
  Call odd(odd_case);
  tessella_attention_options options = call.options();
  options.score_mod = "return 0.5f * score;";
  GpuTwin twin(call.blocks(), false);
  const tessella_forward_args args = twin.args(call.args(), true);
  tessella_plan* plan = nullptr;
  ASSERT_EQ(tessella_plan_make(Tagged(args, options), &plan), TESSELLA_OK) << tessella_last_error();
  const std::string explained = tessella_plan_explain(plan);
  EXPECT_NE(explained.find("operation=forward device=cuda:0 batch="), std::string::npos) << explained;
  EXPECT_EQ(explained.find("threads: at most"), std::string::npos) << explained;
  EXPECT_EQ(tessella_plan_run(plan, Tagged(args, options), nullptr, twin.stream()), TESSELLA_OK)
      << tessella_last_error();
  options.score_mod = "return 0.25f * score;";
  EXPECT_EQ(tessella_plan_run(plan, Tagged(args, options), nullptr, twin.stream()), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "plan_run: score_mod is not the source that the plan was made for");
  EXPECT_EQ(twin.download(), "");

  options.score_mod = "return 0.5f * score;";
  GpuTwin odd_twin(odd.blocks(), false);
  const tessella_forward_args odd_args = odd_twin.args(odd.args(), true);
  EXPECT_EQ(tessella_plan_run(plan, Tagged(odd_args, options), nullptr, odd_twin.stream()), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "plan_run: q.alignment is 2, expected at least 16, as the plan was made for");
  tessella_plan_free(plan);
}

TEST_P(Gpu, TheCallersAllocatorGetsTheStream) {
  struct Seen {
    const cli::Gpu& gpu;
    void* stream;
    size_t allocated = 0, freed = 0;
  };
  Case c = base();
  c.document = true;  // wants scratch, if anything does
  Call call(c);
  GpuTwin twin(call.blocks(), false);
  Seen seen{twin.gpu(), twin.stream()};
  const tessella_allocator allocator{[](size_t bytes, size_t, void* stream, void* user) -> void* {
                                       auto& own = *static_cast<Seen*>(user);
                                       EXPECT_EQ(stream, own.stream);
                                       own.allocated += bytes;
                                       return own.gpu.allocate(bytes);
                                     },
                                     [](void* data, size_t bytes, void* stream, void* user) {
                                       auto& own = *static_cast<Seen*>(user);
                                       EXPECT_EQ(stream, own.stream);
                                       own.freed += bytes;
                                       own.gpu.release(data);
                                     },
                                     &seen};
  tessella_attention_options options = call.options();
  options.allocator = &allocator;
  const tessella_forward_args args = twin.args(call.args(), true);
  ASSERT_EQ(tessella_forward(&args, &options, twin.stream()), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(seen.allocated, seen.freed);
  EXPECT_EQ(twin.download(), "");
  EXPECT_EQ(call.check(), "");
}

TEST_P(Gpu, CheckedValuesThatAreFineRun) {
  Case c = base();
  c.packed_q = c.packed_kv = c.seqlens_kv = true;
  expect_same_meaning(
      c, [](tessella_forward_args&, tessella_attention_options& options) { options.check_device_values = 1; });
}

// A run through a plan holds nothing that a capture forbids; the graph, launched, computes the call.
TEST_P(Gpu, IsCapturedInAGraph) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(driver, nullptr);
  const auto begin = reinterpret_cast<int (*)(void*, int)>(dlsym(driver, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<int (*)(void*, void**)>(dlsym(driver, "cuStreamEndCapture"));
  const auto make =
      reinterpret_cast<int (*)(void**, void*, unsigned long long)>(dlsym(driver, "cuGraphInstantiateWithFlags"));
  const auto launch = reinterpret_cast<int (*)(void*, void*)>(dlsym(driver, "cuGraphLaunch"));
  const auto destroy = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuGraphExecDestroy"));
  if (begin == nullptr || end == nullptr || make == nullptr || launch == nullptr || destroy == nullptr) {
    GTEST_SKIP() << "the driver has no graphs";
  }
  for (const bool with_scratch : {false, true}) {
    Case c = base();
    c.seqlens_kv = true;
    if (with_scratch) c.dense = "bhqk";
    Call call(c);
    GpuTwin twin(call.blocks(), false);
    const tessella_forward_args args = twin.args(call.args(), true);
    tessella_plan* plan = nullptr;
    ASSERT_EQ(tessella_plan_make(Tagged(args, call.options()), &plan), TESSELLA_OK) << tessella_last_error();
    tessella_workspace workspace{};
    tessella_plan_workspace(plan, &workspace.state_bytes, &workspace.scratch_bytes);
    const cli::GpuMemory state(twin.gpu(), workspace.state_bytes), scratch(twin.gpu(), workspace.scratch_bytes);
    workspace.state = state.data();
    workspace.scratch = scratch.data();
    ASSERT_EQ(tessella_plan_initialize(plan, &workspace, twin.stream()), TESSELLA_OK) << tessella_last_error();
    void* graph = nullptr;
    void* executable = nullptr;
    constexpr int kThreadLocal = 1;
    ASSERT_EQ(begin(twin.stream(), kThreadLocal), 0);
    EXPECT_EQ(tessella_plan_run(plan, Tagged(args, call.options()), &workspace, twin.stream()), TESSELLA_OK)
        << tessella_last_error();
    ASSERT_EQ(end(twin.stream(), &graph), 0);
    ASSERT_EQ(make(&executable, graph, 0), 0);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(launch(executable, twin.stream()), 0);
    EXPECT_EQ(twin.download(), "");
    EXPECT_EQ(call.check(), "");
    destroy(executable);
    tessella_plan_free(plan);
  }
}

// Even and odd numbers of query tiles of wide rows.
TEST_P(Gpu, ManyQueriesThatSeeTheSameKeys) {
  for (const int64_t seqlen_q : {1100, 1280}) {
    const Outcome outcome = run_case({.kernel = GetParam().name,
                                      .dtype = "bf16",
                                      .batch = 1,
                                      .heads_q = 1,
                                      .heads_kv = 1,
                                      .seqlen_q = seqlen_q,
                                      .seqlen_kv = 1210,
                                      .head_dim_qk = 256,
                                      .head_dim_v = 256});
    EXPECT_EQ(outcome.verdict, Verdict::passed) << outcome.message;
  }
}

// What warps and blocks do at what time decides no bit: shown best by a build that delays them (TESSELLA_DELAYS).
// Twice as many tiles of queries as multiprocessors, or more.
class GpuRuns : public Gpu {
 protected:
  static constexpr int kRuns = 1000;
  static constexpr int64_t kMoreKeys = 30;
  static std::string run_plain(Call& call) {
    return call.run_plain() == TESSELLA_OK ? call.spoiled() : tessella_last_error();
  }
  // run_call: "" or what went wrong.
  void expect_same_bits(Case c, int64_t seqlen_q = 300,
                        const std::function<std::string(Call&)>& run_call = run_plain) const {
    c.kernel = GetParam().name;
    c.batch = 2;
    c.heads_kv = 12288 / c.head_dim_qk * 300 / seqlen_q / 4;
    c.heads_q = c.heads_kv * 4;
    c.seqlen_q = seqlen_q;
    c.seqlen_kv = seqlen_q + kMoreKeys;
    Call call(c);
    ASSERT_EQ(run_call(call), "");
    ASSERT_EQ(call.check(40), "");
    const std::vector<std::byte> expected = call.results();
    for (int run = 1; run < kRuns; ++run) {
      call.poison_outputs();
      ASSERT_EQ(run_call(call), "") << "run " << run;
      ASSERT_EQ(call.results(), expected) << "run " << run;
    }
  }
};

TEST_P(GpuRuns, CausalHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 64, .head_dim_v = 64, .window_right = 0});
}
// In tiles for long rows.
TEST_P(GpuRuns, LongHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .window_right = 0}, 2048);
}
TEST_P(GpuRuns, LongSoftcapsHaveTheSameBits) {
  expect_same_bits(
      {.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .window_right = 0, .softcap = 30, .lse = false}, 2048);
}
TEST_P(GpuRuns, WindowsHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .window_left = 300, .window_right = 0},
                   600);
}
TEST_P(GpuRuns, WideHaveTheSameBits) {
  expect_same_bits({.dtype = "f16", .head_dim_qk = 256, .head_dim_v = 256, .spread = 40});
}
TEST_P(GpuRuns, LongWideHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 256, .head_dim_v = 256}, 1270);
}
TEST_P(GpuRuns, ModificationsHaveTheSameBits) {
  static_assert(kMoreKeys == 30, "the source says so too");
  const auto alibi = alibi_as("return score - arrays.f32(0)[h] * fabsf(q_minus_k + 30);");
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .alibi = "h"}, 600,
                   [&](Call& call) { return run_changed(call, alibi); });
}
TEST_P(GpuRuns, PackedHaveTheSameBits) {
  expect_same_bits(
      {.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .packed_q = true, .packed_kv = true, .window_right = 5});
}
TEST_P(GpuRuns, PagedHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 128, .head_dim_v = 128, .seqlens_kv = true, .page_size = 16});
}
TEST_P(GpuRuns, MaskedHaveTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 96, .head_dim_v = 96, .document = true, .softcap = 10});
}

TEST_P(GpuRuns, NegativeScalesHaveTheSameBits) {
  expect_same_bits({.dtype = "f16", .head_dim_qk = 192, .head_dim_v = 128, .scale = -0.1});
}
TEST_P(GpuRuns, DropoutHasTheSameBits) {
  expect_same_bits({.dtype = "bf16", .head_dim_qk = 192, .head_dim_v = 192, .window_right = 0, .dropout = 0.2});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Gpu);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuRuns);
INSTANTIATE_TEST_SUITE_P(Kernels, GpuRuns, testing::ValuesIn(gpu_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Gpu, testing::ValuesIn(gpu_kernels()), kernel_test_name);

TEST(GpuChoice, IsMadeForCudaTensors) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  if (gpu_kernels().empty()) GTEST_SKIP() << "no kernel of the GPU in this build";
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    const Outcome outcome =
        run_case({.device = "cuda", .dtype = dtype, .seqlen_q = 60, .head_dim_qk = 64, .head_dim_v = 64});
    EXPECT_EQ(outcome.verdict, Verdict::passed) << dtype << ": " << outcome.message;
  }
  const Outcome outcome = run_case({.device = "cuda", .dtype = "f64"});
  EXPECT_EQ(outcome.verdict, Verdict::unsupported) << outcome.message;
}

}  // namespace
}  // namespace tessella::tests
