// What decoding queues, on a driver that only remembers: grids, clusters, schedules, workspace, and the plans of a loop
// whose lengths grow. Each test is a child process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "api/plan_cache.hpp"
#include "api/run.hpp"
#include "cases/arguments.hpp"
#include "child.hpp"
#include "core/error.hpp"
#include "core/plan.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/kernels.hpp"
#include "cuda/kernels/decode/params.cuh"
#include "cuda/kernels/forward_widened/recipe.hpp"
#include "fake_driver.hpp"
#include "operations/attention/arguments.hpp"

namespace {

using namespace tessella;
using core::AttentionArguments;
using core::Feature;

constexpr unsigned kNumSms = 100;  // the fake GPU's

// A step of bf16 with one query of eight heads on one, a tile of eight rows.
AttentionArguments step(int64_t batch, int64_t heads_kv, int64_t seqlen_kv, int64_t seqlen_q = 1) {
  AttentionArguments p = tests::gpu_arguments({.batch = batch,
                                               .heads_q = 8 * heads_kv,
                                               .heads_kv = heads_kv,
                                               .seqlen_q = seqlen_q,
                                               .seqlen_kv = seqlen_kv,
                                               .head_dim_qk = 128,
                                               .head_dim_v = 128});
  p.device.id = 1;
  return p;
}

AttentionArguments scheduled(AttentionArguments p) {
  static int32_t words[4096];
  p.features |= Feature::schedule | Feature::seqlens_kv;
  static const int32_t lengths[64] = {};
  p.seqlens_kv = {lengths, 1, 1};
  p.schedule = words;
  p.schedule_bytes = sizeof words;
  return p;
}

core::Plan planned(const AttentionArguments& p, std::string_view kernel = "cuda.decode") {
  return api::make_plan(core::Shape(p), {kernel}, "plan_make");
}

void run(const core::Plan& plan, const AttentionArguments& p) {
  fake_driver()->launches.clear();
  api::run(plan, &p, nullptr, nullptr, nullptr, "plan_run");
}

// Of the last launch.
portable::DecodeParams parameters() {
  portable::DecodeParams params;
  EXPECT_EQ(fake_driver()->parameters.size(), sizeof params);
  std::memcpy(&params, fake_driver()->parameters.data(), sizeof params);
  return params;
}
unsigned cluster() {
  for (const cuda::CUlaunchAttribute& attribute : fake_driver()->attributes) {
    if (attribute.id == cuda::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return attribute.value.clusterDim.x;
  }
  return 1;
}
bool is_dependent() {
  return std::ranges::any_of(fake_driver()->attributes, [](const cuda::CUlaunchAttribute& attribute) {
    return attribute.id == cuda::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  });
}

template <typename Fn>
std::string ineligible(Fn&& fn) {
  try {
    fn();
    return "";
  } catch (const core::Error& error) {
    return error.what();
  }
}

void in_child(void (*fn)(), const char* arch = "90") {
  tests::in_child({{"FAKE_CUDA_PARAMS", std::to_string(sizeof(portable::DecodeParams))},
                   {"FAKE_CUDA_ARCH", arch},
                   {"TESSELLA_CACHE_DIR", TESSELLA_TEST_CACHE}},
                  [fn] {
                    tests::skip_without_nvrtc();
                    fn();
                  });
}

struct Splits {
  AttentionArguments call;
  int num_splits;
  unsigned blocks, cluster;
  int64_t state_bytes, slots;  // slots: results of 8 rows of 128 columns, with a maximum and a sum
};

void expect(const Splits& s) {
  AttentionArguments p = s.call;
  p.num_splits = s.num_splits;
  const core::Plan plan = planned(p);
  EXPECT_EQ(plan.workspace.state_bytes, s.state_bytes);
  EXPECT_EQ(plan.workspace.scratch_bytes, s.slots * 8 * (128 + 2) * 4);
  EXPECT_EQ(plan.made_bytes, 0);
  run(plan, p);
  ASSERT_EQ(fake_driver()->launches.size(), 1u);
  EXPECT_EQ(fake_driver()->launched_on, 1);
  EXPECT_EQ(fake_driver()->launches[0].gridDimX, s.blocks);
  EXPECT_EQ(fake_driver()->launches[0].gridDimY, 1u);
  EXPECT_EQ(cluster(), s.cluster);
  EXPECT_EQ(parameters().schedule, nullptr);
}

TEST(DecodeLaunch, KeysAreSplitOverBlocksAndClusters) {
  in_child([] {
    // A unit is a sequence and KV head. From half as many as multiprocessors on each has a block.
    expect({step(64, 8, 8192), 0, 512, 1, 0, 0});
    // Few have a cluster of eight, and three of them where keys are many.
    expect({step(1, 2, 65536), 0, 2 * 3 * 8, 8, 2 * 8 * 4, 6});
    expect({step(1, 2, 1024), 0, 2 * 8, 8, 0, 0});
    // More of them have pairs of blocks.
    expect({step(1, 16, 65536), 0, 16 * 3 * 2, 2, 16 * 2 * 4, 16 * 3});
    EXPECT_TRUE(is_dependent());
  });
}

TEST(DecodeLaunch, NumSplitsIsHonoured) {
  in_child([] {
    expect({step(1, 2, 65536), 1, 2, 1, 0, 0});
    expect({step(1, 2, 65536), 3, 2 * 3, 1, 2 * 4, 2 * 3});
    expect({step(1, 2, 65536), 12, 2 * 12, 4, 2 * 4 * 4, 2 * 3});
    expect({step(64, 8, 8192), 16, 512 * 16, 8, 512 * 8 * 4, 512 * 2});
    AttentionArguments p = step(1, 2, 65536);
    p.num_splits = 3;
    EXPECT_EQ(planned(p, "cuda.decode_unified_max").workspace.scratch_bytes, 2 * 3 * 8 * 130 * 4);
    for (const char* prefill : {"cuda.forward_sm90", "cuda.forward_sm80"}) {
      EXPECT_NE(ineligible([&] { planned(p, prefill); }).find("takes no number of splits, and num_splits is 3"),
                std::string::npos);
    }
  });
}

// A step of 128 heads on MLA's cache.
AttentionArguments mla_step(int64_t batch, int64_t seqlen_kv) {
  AttentionArguments p = tests::gpu_arguments(
      {.batch = batch, .heads_q = 128, .seqlen_kv = seqlen_kv, .head_dim_qk = 576, .head_dim_v = 512});
  p.v_in_k = true;
  p.device.id = 1;
  return p;
}

TEST(DecodeLaunch, RowsOfMla) {
  in_child([] {
    const AttentionArguments p = mla_step(1, 65536);
    const core::Plan plan = planned(p, "");
    EXPECT_EQ(plan.kernel->name, "cuda.decode");
    // Two tiles of 64 rows, five clusters each, which leave rows of 512 columns.
    EXPECT_EQ(plan.workspace.scratch_bytes, 2 * 5 * 64 * (512 + 2) * 4);
    run(plan, p);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 2u * 5 * 8);
    EXPECT_EQ(cluster(), 8u);

    AttentionArguments other = p;
    other.v_in_k = false;
    EXPECT_NE(ineligible([&] { planned(other); }).find("takes head dims above 256 where v is the first columns of k"),
              std::string::npos);
    other = p;
    other.head_dim_qk = 584;
    EXPECT_NE(ineligible([&] { planned(other); }).find("head_dim_qk is 584, at most 576"), std::string::npos);
    other = p;
    other.head_dim_v = 520;
    EXPECT_NE(ineligible([&] { planned(other); }).find("takes head dims to 576 and 512, not 576 and 520"),
              std::string::npos);
    other = p;
    for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v, core::Name::out}) {
      other.tensors[name].dtype = other.operands[name].dtype = core::DType::f32;
    }
    EXPECT_NE(ineligible([&] { planned(other); }).find("takes head dims above 256 in bf16 and f16"), std::string::npos);
  });
}

// Without a key there is nothing to read: a call and its plan in the cache say the same of v.
TEST(DecodeLaunch, CachesWithoutARow) {
  in_child([] {
    AttentionArguments p = mla_step(2, 0);
    p.heads_kv = 2;
    p.v_in_k = false;
    EXPECT_EQ(planned(p, "").kernel->name, "cuda.decode");
    EXPECT_EQ(api::cached_plan(p, {}, "forward")->kernel->name, "cuda.decode");
  });
}

TEST(DecodeLaunch, BeforeHopperBlocksMeetInMemory) {
  in_child(
      [] {
        expect({step(1, 2, 65536), 0, 2 * 50, 1, 2 * 4, 2 * 50});
        EXPECT_TRUE(fake_driver()->attributes.empty()) << "no cluster, no launch before the kernel before it ends";
        const AttentionArguments p = scheduled(step(3, 2, 65536));
        const core::Plan plan = planned(p);
        run(plan, p);
        EXPECT_EQ(fake_driver()->launches[0].gridDimX, kNumSms);
      },
      "80");
}

TEST(DecodeLaunch, ASchedule) {
  in_child([] {
    // Six units: 50 pairs of blocks, and counters of each block of a unit.
    const AttentionArguments p = scheduled(step(3, 2, 65536));
    const core::Plan plan = planned(p);
    constexpr int64_t kWords = 1 + (3 + 1) + 50;
    EXPECT_EQ(plan.made_bytes, (kWords + 6 * 2) * 4);
    EXPECT_EQ(plan.workspace.state_bytes, 0) << "it has its own counters";
    EXPECT_NE(plan.explanation.find("schedule: " + std::to_string(plan.made_bytes) + " bytes"), std::string::npos);
    fake_driver()->launches.clear();
    api::make_before(plan, &p, reinterpret_cast<void*>(0x77), "plan_schedule");
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 1u);
    EXPECT_EQ(fake_driver()->launches[0].blockDimX, static_cast<unsigned>(portable::kScheduleThreads));
    EXPECT_EQ(fake_driver()->launches[0].hStream, reinterpret_cast<cuda::CUstream>(0x77));
    EXPECT_TRUE(fake_driver()->attributes.empty()) << "it reads lengths that the kernel before may write";
    EXPECT_EQ(parameters().schedule, p.schedule);
    run(plan, p);
    ASSERT_EQ(fake_driver()->launches.size(), 1u);
    EXPECT_EQ(fake_driver()->launches[0].gridDimX, 2 * 50u);
    EXPECT_EQ(cluster(), 2u);
    EXPECT_EQ(parameters().schedule, p.schedule);
    EXPECT_EQ(reinterpret_cast<int32_t*>(parameters().arrived), parameters().schedule + kWords);
  });
}

TEST(DecodeLaunch, AScheduleThatIsTooSmallQueuesNothing) {
  in_child([] {
    AttentionArguments p = scheduled(step(3, 2, 65536));
    const core::Plan plan = planned(p);
    p.schedule_bytes = plan.made_bytes;
    EXPECT_EQ(ineligible([&] { run(plan, p); }), "");
    p.schedule_bytes -= 4;
    const std::string needed = std::to_string(plan.made_bytes);
    const std::string reason = ": schedule has " + std::to_string(plan.made_bytes - 4) + " bytes, expected at least " +
                               needed + ", what the kernel reads";
    EXPECT_EQ(ineligible([&] { run(plan, p); }), "plan_run" + reason);
    EXPECT_EQ(ineligible([&] { api::make_before(plan, &p, nullptr, "plan_schedule"); }), "plan_schedule" + reason);
    EXPECT_TRUE(fake_driver()->launches.empty());
    p.schedule_bytes = plan.made_bytes;
    int32_t flag = 1;
    p.cancel = &flag;
    EXPECT_EQ(ineligible([&] { api::make_before(plan, &p, nullptr, "plan_schedule"); }),
              "plan_schedule: the call was cancelled before it began; nothing was touched");
    EXPECT_TRUE(fake_driver()->launches.empty());
  });
}

// Prefill kernels follow a mask's map alone. Plans of exact lengths and of the cache's have one size of it, whatever
// tiles rows make.
TEST(DecodeLaunch, OneScheduleServesPlansOfRoundedLengths) {
  in_child([] {
    for (const int64_t seqlen_q : {1, 3, 5, 7}) {
      AttentionArguments p = scheduled(step(3, 2, 65536, seqlen_q));
      for (const auto& [dtype, dim] : {std::pair{core::DType::bf16, 128}, {core::DType::f32, 256}}) {
        for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v, core::Name::out}) {
          p.operands[name].dtype = p.tensors[name].dtype = dtype;
        }
        p.head_dim_qk = p.head_dim_v = dim;
        const auto cached = api::cached_plan(p, {}, "forward");
        EXPECT_EQ(cached->kernel->name, "cuda.decode");
        EXPECT_EQ(cached->made_bytes, planned(p).made_bytes) << seqlen_q << ' ' << dim;
        EXPECT_GT(cached->made_bytes, 0);
      }
    }
    const AttentionArguments many = scheduled(step(3, 2, 65536, 1000));
    const std::string reason = ineligible([&] { api::cached_plan(many, {}, "forward"); });
    EXPECT_NE(reason.find("cuda.forward_sm90, cuda.forward_sm80: does not support schedule"), std::string::npos)
        << reason;
    EXPECT_NE(reason.find("cuda.decode: takes at most 64 query rows"), std::string::npos) << reason;
  });
}

AttentionArguments quantized(core::DType dtype) {
  AttentionArguments p = step(3, 2, 4096);
  for (const core::Name name : {core::Name::k, core::Name::v}) p.operands[name].dtype = p.tensors[name].dtype = dtype;
  return p;
}

// A plan of copies of q, k and v, another kernel's steps, and out from its result.
TEST(WidenedLaunch, StepsAroundAnotherKernel) {
  in_child([] {
    AttentionArguments p = step(2, 1, 300, 200);
    for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v}) {
      p.operands[name].dtype = p.tensors[name].dtype = core::DType::f8e5m2;
    }
    const core::Plan plan = planned(p, "");
    EXPECT_EQ(plan.kernel->name, "cuda.forward_widened");
    for (const char* part : {"kernel: cuda.forward_widened", "q, k and v of f8e5m2 in bf16, by cuda.forward_sm90: "}) {
      EXPECT_NE(plan.explanation.find(part), std::string::npos) << plan.explanation;
    }
    constexpr int64_t kBytes = 2 * (200 * 8 * 128 + 300 * 128 * 2) * 2;  // of bf16, for two sequences
    EXPECT_GE(plan.workspace.scratch_bytes, kBytes);
    EXPECT_LT(plan.workspace.scratch_bytes, kBytes + (64 << 10));
    const auto num_steps = [&] { return cuda::forward_widened_recipe(p, cuda::device_info(1)).steps.size(); };
    EXPECT_EQ(num_steps(), 2U);
    p.operands[core::Name::amax].dtype = core::DType::f32;
    p.features |= Feature::scales;
    EXPECT_EQ(num_steps(), 3U);
    EXPECT_NE(planned(p, "").explanation.find("out of bf16 from f32, amax, by cuda.forward_sm90: "), std::string::npos);
    // f8e4m3fn as it is: amax set to 0, v transposed, the kernel, out.
    for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v}) {
      p.operands[name].dtype = p.tensors[name].dtype = core::DType::f8e4m3fn;
    }
    EXPECT_EQ(num_steps(), 4U);
    EXPECT_NE(planned(p, "").explanation.find(
                  "q, k and v as they are, out of bf16 from f32, amax, by cuda.forward_f8_sm90: "),
              std::string::npos);
    // A transposed v is read as it is.
    p.features |= Feature::transposed_v;
    EXPECT_EQ(num_steps(), 3U);
  });
}

TEST(DecodeLaunch, QuantizedCaches) {
  in_child([] {
    for (const core::DType dtype : {core::DType::f8e4m3fn, core::DType::i8, core::DType::i4}) {
      AttentionArguments p = quantized(dtype);
      static float scales[3 * 4096 * 2];
      for (const int64_t scale_block : {0, 1, 64}) {
        p.features |= Feature::kv_scales;
        p.scale_block = scale_block;
        for (const core::Name name : {core::Name::k_scale, core::Name::v_scale}) {
          p.tensors[name] = {reinterpret_cast<std::byte*>(scales), core::DType::f32, 8192, 2, 1};
        }
        const core::Plan plan = planned(p, "");
        EXPECT_EQ(plan.kernel->name, "cuda.decode");
        run(plan, p);
        const portable::DecodeParams params = parameters();
        const int64_t per_unit = dtype == core::DType::i4 ? 2 : 1;  // strides count bytes
        EXPECT_EQ(params.inputs.k.row_stride * per_unit, p.k().row_stride);
        EXPECT_EQ(params.inputs.v.batch_stride * per_unit, p.v().batch_stride);
        EXPECT_EQ(params.k_scale.data, scales);
        // One number for all keys of a slot multiplies out.
        const portable::CacheScaleParams& of_v = scale_block == 0 ? params.out_factor : params.v_scale;
        EXPECT_EQ((scale_block == 0 ? params.v_scale : params.out_factor).data, nullptr);
        EXPECT_EQ(of_v.data, scales);
        EXPECT_EQ(of_v.batch_stride, 8192);
        EXPECT_EQ(of_v.row_stride, scale_block == 0 ? 0 : 2);
        EXPECT_EQ(params.scale_block.value, scale_block == 0 ? 1 : scale_block);
      }
      for (const char* other : {"cuda.forward_sm90", "cuda.forward_sm80", "cuda.decode_unified_max"}) {
        EXPECT_NE(ineligible([&] { planned(p, other); }), "") << other;
      }
      p.head_dim_v = 128 / core::size_bits(dtype) + 8;
      EXPECT_NE(ineligible([&] { planned(p); }).find("begin at multiples of 16 bytes and fill them"), std::string::npos)
          << ineligible([&] { planned(p); });
    }
    // Prompts on such caches are decoding's where cuda.forward_widened does not take them.
    AttentionArguments many = quantized(core::DType::i4);
    many.seqlen_q = many.total_q = 1000;
    EXPECT_EQ(planned(many, "").kernel->name, "cuda.decode");
    many = quantized(core::DType::i8);
    many.seqlen_q = many.total_q = 1000;
    EXPECT_EQ(planned(many, "").kernel->name, "cuda.forward_widened");
    many.num_splits = 2;
    EXPECT_EQ(planned(many, "").kernel->name, "cuda.decode");
    many.num_splits = 0;
    many.seqlen_q = many.total_q = 8;  // of eight heads
    EXPECT_EQ(planned(many, "").kernel->name, "cuda.decode");
    AttentionArguments p = quantized(core::DType::i8);
    for (const core::Name name : {core::Name::q, core::Name::out}) {
      p.operands[name].dtype = p.tensors[name].dtype = core::DType::f32;
    }
    EXPECT_EQ(planned(p, "").kernel->name, "cuda.decode");
  });
}

TEST(DecodeLaunch, ASettledCacheIsNoMatterOfAPlan) {
  in_child([] {
    AttentionArguments p = step(1, 2, 65536);
    const core::Plan plan = planned(p);
    for (const bool is_settled : {false, true, false}) {
      p.cache_is_settled = is_settled;
      run(plan, p);
      EXPECT_EQ(parameters().cache_is_settled, is_settled ? 1 : 0);
      EXPECT_EQ(api::cached_plan(p, {}, "forward"), api::cached_plan(p, {}, "forward"));
    }
  });
}

// State of a plain call is the stream's, made once: the calls after the first take scratch, and set nothing to zero.
TEST(DecodeLaunch, PlainCallsHaveTheStreamsState) {
  in_child([] {
    for (const auto& [batch, heads_kv, num_splits] : {std::tuple{1, 2, 0}, {1, 16, 0}, {8, 16, 3}}) {
      AttentionArguments p = step(batch, heads_kv, 65536);
      p.num_splits = num_splits;
      const core::Plan plan = planned(p);
      ASSERT_GT(plan.workspace.state_bytes, 0);
      run(plan, p);
      const auto [allocations, zeroed] = std::pair{fake_driver()->num_allocations, fake_driver()->num_zeroed};
      EXPECT_EQ(zeroed, 1) << "once a stream";
      run(plan, p);
      EXPECT_EQ(fake_driver()->num_allocations, allocations + 1);
      EXPECT_EQ(fake_driver()->num_zeroed, zeroed);
    }
  });
}

// One of a cache whose tensors stay; few where keys are put in tensors that grow.
TEST(DecodeLaunch, ALoopOfStepsHasOnePlan) {
  in_child([] {
    const auto plan_of = [](const AttentionArguments& p) {
      const auto plan = api::cached_plan(p, {}, "forward");
      EXPECT_EQ(plan->kernel->name, "cuda.decode");
      return plan;
    };
    AttentionArguments p = step(4, 8, 32768);
    p.features = Feature::seqlens_kv | Feature::window;
    p.window_right = 0;
    const auto first = plan_of(p);
    std::vector<int32_t> lengths(4);
    p.seqlens_kv = {lengths.data(), 1, 1};
    for (int32_t length = 1; length < 2000; ++length) {
      lengths.assign(4, length);
      ASSERT_EQ(plan_of(p), first);
    }
    std::set<std::shared_ptr<const core::Plan>> plans;
    for (int64_t length = 4096; length <= 8192; ++length) {
      AttentionArguments grown = step(4, 8, length);
      grown.features = Feature::window;
      grown.window_right = 0;
      plans.insert(plan_of(grown));
    }
    EXPECT_EQ(plans.size(), 5u) << "for 4096, 5120, 6144, 7168 and 8192 keys";
    plans.clear();
    for (const int64_t drafts : {5, 6, 7, 8}) {
      AttentionArguments some = step(4, 8, 32768, drafts);
      some.features = Feature::window;
      plans.insert(plan_of(some));
    }
    EXPECT_EQ(plans.size(), 4u) << "few queries have plans of their own";
  });
}

}  // namespace
