// The API layer: calls beyond the plain one, and whose memory they use.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cases/gpu_kernels.hpp"
#include "cases/small_call.hpp"
#include "tessella/attention.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

constexpr auto kUnsupported = ts::ErrorCode::unsupported;

TEST(Api, WithoutAGpuCudaTensorsAreErrorsWithTheReason) {
  if (gpu_arguments().empty()) GTEST_SKIP() << "there is a GPU here";
  SmallCall call;
  call.args.q = ts::TensorView(changed(call.args.q, [](tessella_tensor& t) { t.device_type = TESSELLA_CUDA; }));
  try {
    ts::forward(call.args);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), kUnsupported);
    EXPECT_EQ(std::string(error.what()).rfind("forward: q is on cuda:0, and ", 0), 0u) << error.what();
  }
}

TEST(Api, AValidCallRuns) {
  SmallCall call;
  ts::forward(call.args, call.options);
  for (const float value : call.out) EXPECT_NEAR(value, 2.0f, 1e-5);  // all v are 2
  const float score = 0.5f * 0.25f * kDim / std::sqrt(static_cast<float>(kDim));
  for (const float value : call.lse) EXPECT_NEAR(value, score + std::log(5.0f), 1e-5);
}

TEST(Api, SwitchesAreZeroOrOne) {
  using Options = tessella_attention_options;
  for (const auto& [name, field] : {std::pair{"causal_top_left", &Options::causal_top_left},
                                    std::pair{"batch_invariant", &Options::batch_invariant},
                                    std::pair{"check_device_values", &Options::check_device_values}}) {
    for (const int32_t value : {-1, 0, 1, 2}) {
      SmallCall call;
      ts::detail::ForwardCall c(call.args, call.options);
      c.options.*field = value;
      const bool is_switch = value == 0 || value == 1;
      EXPECT_EQ(tessella_forward(&c.args, &c.options, nullptr), is_switch ? TESSELLA_OK : TESSELLA_INVALID_ARGUMENT);
      if (is_switch) continue;
      EXPECT_EQ(std::string(tessella_last_error()),
                "forward: " + std::string(name) + " is " + std::to_string(value) + ", expected 0 or 1");
    }
  }
}

TEST(Api, DeterministicIsOneOfThree) {
  for (const int32_t value : {-1, 0, 1, 2, 3}) {
    SmallCall call;
    ts::detail::ForwardCall c(call.args, call.options);
    c.options.deterministic = value;
    const bool is_valid = value >= 0 && value <= 2;
    EXPECT_EQ(tessella_forward(&c.args, &c.options, nullptr), is_valid ? TESSELLA_OK : TESSELLA_INVALID_ARGUMENT);
    if (is_valid) continue;
    EXPECT_EQ(std::string(tessella_last_error()),
              "forward: deterministic is " + std::to_string(value) + ", expected 0 to 2");
  }
}

TEST(Api, SwappedAxesAreGuessed) {
  std::vector<float> memory(2 * 64 * 4 * 8, 0.0f);
  std::vector<float> out(memory.size());
  const auto q = ts::view(memory.data(), ts::f32, {1, 4, 64, 8});  // heads and seqlen swapped
  const auto k = ts::view(memory.data(), ts::f32, {1, 2, 48, 8});
  try {
    ts::forward({.q = q, .k = k, .v = k, .out = ts::view(out.data(), ts::f32, {1, 4, 64, 8})});
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_NE(std::string(error.what()).find("with axes 1 and 2 swapped they would fit"), std::string::npos)
        << error.what();
  }
}

TEST(Api, NullStructsAreErrors) {
  EXPECT_EQ(tessella_forward(nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessella_last_error(), "forward: args is NULL, expected a pointer");
  tessella_forward_args args{};
  EXPECT_EQ(tessella_forward(&args, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessella_last_error()).find("struct_size is 0"), std::string::npos);
  EXPECT_EQ(tessella_plan_run(nullptr, nullptr, nullptr, nullptr), TESSELLA_INVALID_ARGUMENT);
  tessella_plan_free(nullptr);
}

TEST(Api, ANewerStructThatSetsAnUnknownFieldIsAnError) {
  struct Newer {
    tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
    int64_t unknown = 0;
  } newer;
  newer.options.struct_size = sizeof(Newer);
  SmallCall call;
  const ts::detail::ForwardCall c(call.args, call.options);
  EXPECT_EQ(tessella_forward(&c.args, &newer.options, nullptr), TESSELLA_OK) << tessella_last_error();
  newer.unknown = 1;
  EXPECT_EQ(tessella_forward(&c.args, &newer.options, nullptr), TESSELLA_UNSUPPORTED);
  EXPECT_NE(std::string(tessella_last_error()).find("options sets a field at byte"), std::string::npos);
}

TEST(Api, SlicesOfOneBufferDoNotOverlap) {
  // (seqlen, 4, heads, dim): q, k, v and out side by side in every row
  constexpr int64_t kSeqlen = 6, kHeads = 2, kPlane = kHeads * kDim;
  std::vector<float> buffer(kSeqlen * 4 * kPlane, 1.0f);
  const auto slice = [&](int64_t idx) {
    return ts::view(buffer.data() + idx * kPlane, ts::f32, {1, kSeqlen, kHeads, kDim}, {0, 4 * kPlane, kDim, 1});
  };
  EXPECT_NO_THROW(ts::forward({.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(3)}));
  EXPECT_THROW(ts::forward({.q = slice(0), .k = slice(1), .v = slice(2), .out = slice(2)}), ts::Error);
}

TEST(Api, ShapesWithoutBatchOrHeads) {
  std::vector<float> q(4 * 8, 1.0f), out2(4 * 8), out3(4 * 8), lse(4);
  const auto q2 = ts::view(q.data(), ts::f32, {4, 8});
  ts::forward({.q = q2,
               .k = q2,
               .v = q2,
               .out = ts::view(out2.data(), ts::f32, {4, 8}),
               .lse = ts::view(lse.data(), ts::f32, {4})});
  const auto q3 = ts::view(q.data(), ts::f32, {4, 1, 8});
  ts::forward({.q = q3, .k = q3, .v = q3, .out = ts::view(out3.data(), ts::f32, {4, 1, 8})});
  EXPECT_EQ(out2, out3);
}

TEST(Api, TheAllocatorOfTheCallerIsUsed) {
  struct Counts {
    size_t allocated = 0, freed = 0;
  } counts;
  const tessella_allocator allocator{[](size_t bytes, size_t alignment, void*, void* user) -> void* {
                                       static_cast<Counts*>(user)->allocated += bytes;
                                       return std::aligned_alloc(alignment,
                                                                 (bytes + alignment - 1) / alignment * alignment);
                                     },
                                     [](void* data, size_t bytes, void*, void* user) {
                                       static_cast<Counts*>(user)->freed += bytes;
                                       std::free(data);
                                     },
                                     &counts};
  SmallCall call;
  call.options.allocator = &allocator;
  ts::forward(call.args, call.options);
  EXPECT_GT(counts.allocated, 0u);
  EXPECT_EQ(counts.allocated, counts.freed);

  const tessella_allocator broke{[](size_t, size_t, void*, void*) -> void* { return nullptr; },
                                 [](void*, size_t, void*, void*) {}, nullptr};
  call.options.allocator = &broke;
  try {
    ts::forward(call.args, call.options);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::out_of_memory);
  }
}

TEST(Api, BoundsOfAPlanAreLimited) {
  SmallCall call;
  for (const int64_t bound : {INT64_MAX, int64_t{1} << 40, int64_t{1} << 31}) {
    call.options.max_seqlen_kv = bound;
    try {
      ts::plan_forward(call.args, call.options);
      FAIL() << bound;
    } catch (const ts::Error& error) {
      EXPECT_EQ(error.code(), kUnsupported) << error.what();
    }
  }
}

TEST(Api, APlanNeedsNoMemory) {
  SmallCall call;
  const ts::Plan planned = ts::plan_forward(call.args, call.options);
  SmallCall bare;
  for (ts::TensorView* t : {&bare.args.q, &bare.args.k, &bare.args.v, &bare.args.out, &bare.args.lse}) {
    *t = ts::TensorView(changed(*t, [](tessella_tensor& tensor) { tensor.data = nullptr; }));
  }
  const ts::Plan plan = ts::plan_forward(bare.args, bare.options);
  EXPECT_EQ(plan.explain(), planned.explain());
  plan.run(call.args, call.options, nullptr);
  SmallCall plain;
  ts::forward(plain.args, plain.options);
  EXPECT_EQ(call.out, plain.out);
}

TEST(Api, ARunHasThePlansThreads) {
  SmallCall call;
  call.options.num_threads = 1;
  const ts::Plan plan = ts::plan_forward(call.args, call.options);
  plan.run(call.args, call.options, nullptr);
  call.options.num_threads = 0;
  plan.run(call.args, call.options, nullptr);
  call.options.num_threads = 2;
  try {
    plan.run(call.args, call.options, nullptr);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(), "plan_run: num_threads is 2, expected 1, what the plan was made for");
  }
}

TEST(Api, WhatIsComparedMayBeReadOnly) {
  SmallCall call;
  ts::forward(call.args, call.options);
  call.args.out = ts::view(std::as_const(call.out).data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
  EXPECT_EQ(ts::check_forward(call.args, call.options, 0, 0).passed, 1);
}

TEST(Api, LseIsComparedWhereGiven) {
  SmallCall call;
  ts::forward(call.args, call.options);
  EXPECT_EQ(ts::check_forward(call.args, call.options, 0).passed, 1);
  call.lse[7] += 1e-3f;  // batch 0, head 2, row 1
  const tessella_check_report report = ts::check_forward(call.args, call.options, 0);
  EXPECT_EQ(report.passed, 0);
  EXPECT_EQ(report.worst_index[1], 1);
  EXPECT_EQ(report.worst_index[2], 2);
  EXPECT_EQ(report.worst_index[3], -1);
  call.args.lse = {};
  EXPECT_EQ(ts::check_forward(call.args, call.options, 0).passed, 1);
}

TEST(Api, AStrideOfZeroRepeatsAValue) {
  SmallCall repeated, listed;
  float sink = 0.75f;
  std::vector<float> sinks(kHeadsQ, sink);
  repeated.args.sink = ts::view(&sink, ts::f32, {kHeadsQ}, {0});
  listed.args.sink = ts::view(sinks.data(), ts::f32, {kHeadsQ});
  ts::forward(repeated.args);
  ts::forward(listed.args);
  EXPECT_EQ(repeated.out, listed.out);
  EXPECT_EQ(repeated.lse, listed.lse);
}

TEST(Api, ACrookedAllocatorIsAnError) {
  SmallCall call;
  static std::vector<char> memory(1 << 20);
  const tessella_allocator crooked{[](size_t, size_t, void*, void*) -> void* {
                                     return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) + 16;
                                   },
                                   [](void*, size_t, void*, void*) {}, nullptr};
  call.options.allocator = &crooked;
  EXPECT_THROW(ts::forward(call.args, call.options), ts::Error);
  const tessella_allocator none{};
  call.options.allocator = &none;
  EXPECT_THROW(ts::forward(call.args, call.options), ts::Error);
}

TEST(Mask, PartsJoin) {
  tessella_attention_options spoiled = TESSELLA_ATTENTION_OPTIONS_INIT;
  (ts::Mask::chunk(-3) & ts::Mask::causal()).fill(spoiled);
  EXPECT_EQ(spoiled.chunk, -3);  // for the library to report
  EXPECT_THROW(ts::Mask::chunk(4) & ts::Mask::chunk(8), ts::Error);
  const int32_t numbers[] = {0, 2};
  const ts::TensorView ids = ts::view(numbers, ts::i32, {2});
  EXPECT_THROW(ts::Mask::document(ids) & ts::Mask::document(ids), ts::Error);
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  (ts::Mask::window(7, 3) & ts::Mask::causal() & ts::Mask::window(9, -1)).fill(options);
  EXPECT_EQ(options.window_left, 7);
  EXPECT_EQ(options.window_right, 0);
}

}  // namespace
