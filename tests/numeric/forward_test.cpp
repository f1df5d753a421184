// Every kernel, by name, against the reference: each feature, pairs of features, dtypes, layouts, odd and empty sizes.
// A failing case is named by its line (random_test --case "LINE").
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/kernels.hpp"

namespace tessella::tests {
namespace {

class Forward : public EachKernel {
 protected:
  // Runs a case in every dtype of the kernel. An unsupported case must come with its reason, and is only fine where the
  // kernel's own description says so.
  void run(Case c, bool may_be_unsupported = false) {
    c.kernel = GetParam().name;
    c.batch_invariant = c.few = GetParam().is_for_few();
    for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
      if (!GetParam().computes(dtype)) continue;
      c.dtype = dtype;
      if (!c.bias_f32 && c.bias.empty()) c.bias_f32 = true;
      run_as_given(c, may_be_unsupported);
    }
  }
  void run_as_given(const Case& c, bool may_be_unsupported = false) {
    const Outcome outcome = run_case(c);
    const bool may = may_be_unsupported || (!GetParam().takes_every_row() && is_for_other_kernels(c));
    const bool fine = outcome.verdict == Verdict::passed || (may && outcome.verdict == Verdict::unsupported);
    EXPECT_TRUE(fine) << "--case \"" << to_string(c) << "\"\n  " << outcome.message;
  }
  // Rows that the copy engine does not read.
  static bool is_for_other_kernels(const Case& c) {
    return c.layout == "sliced" || c.layout == "qkv" || c.shift % 8 != 0 || c.head_dim_qk % 8 != 0 ||
           c.head_dim_v % 8 != 0 || c.page_size % 8 != 0 || (c.page_size != 0 && c.leftpad_kv);
  }
  Case base() const {
    return {.batch = 2,
            .heads_q = 4,
            .heads_kv = 2,
            .seqlen_q = 37,
            .seqlen_kv = 53,
            .head_dim_qk = 32,
            .head_dim_v = 32,
            .seed = 1};
  }
};

struct Change {
  const char* name;
  std::function<void(Case&)> apply;
};

const std::vector<Change>& features() {
  static const std::vector<Change> list = {
      {"causal", [](Case& c) { c.window_right = 0; }},
      {"window", [](Case& c) { c.window_left = 9, c.window_right = 4; }},
      {"causal_top_left", [](Case& c) { c.causal_top_left = true; }},
      {"chunk", [](Case& c) { c.chunk = 12; }},
      {"keep_first", [](Case& c) { c.keep_first = 3, c.window_left = 5; }},
      {"prefix", [](Case& c) { c.prefix = true; }},
      {"document", [](Case& c) { c.document = true; }},
      {"dense", [](Case& c) { c.dense = "bhqk"; }},
      {"dense_broadcast", [](Case& c) { c.dense = "k"; }},
      {"draft_mask", [](Case& c) { c.draft_mask = "b"; }},
      {"block_map", [](Case& c) { c.block_map = "hqk", c.block_q = 16, c.block_kv = 8; }},
      {"seqlens_q", [](Case& c) { c.seqlens_q = true; }},
      {"seqlens_kv", [](Case& c) { c.seqlens_kv = true; }},
      {"leftpad_kv", [](Case& c) { c.leftpad_kv = true; }},
      {"packed", [](Case& c) { c.packed_q = c.packed_kv = true; }},
      {"packed_q", [](Case& c) { c.packed_q = true; }},
      {"packed_kv", [](Case& c) { c.packed_kv = true; }},
      {"pages", [](Case& c) { c.page_size = 16, c.packed_kv = false; }},
      {"slots", [](Case& c) { c.cache_batch_idx = true, c.packed_kv = false, c.page_size = 0; }},
      {"bias", [](Case& c) { c.bias = "bhqk"; }},
      {"bias_own_dtype", [](Case& c) { c.bias = "hk", c.bias_f32 = false; }},
      {"alibi", [](Case& c) { c.alibi = "bh"; }},
      {"softcap", [](Case& c) { c.softcap = 15; }},
      {"sink", [](Case& c) { c.sink = true; }},
      {"dropout", [](Case& c) { c.dropout = 0.3; }},
      {"scale", [](Case& c) { c.scale = -0.7; }},
      {"no_lse", [](Case& c) { c.lse = false; }},
      {"large_scores", [](Case& c) { c.spread = 30; }},
  };
  return list;
}

TEST_P(Forward, Plain) { run(base()); }

TEST_P(Forward, EachFeature) {
  for (const Change& feature : features()) {
    Case c = base();
    feature.apply(c);
    SCOPED_TRACE(feature.name);
    run(c);
  }
}

// Scores far below the softcap, about it and far above; rows of few keys may have no score above zero,
// of many some that are beyond the series of GPUs, behind others that are not.
class Softcaps : public Forward {};
TEST_P(Softcaps, OfAnySize) {
  for (const double softcap : {0.3, 4.0, 15.0, 30.0, 50.0, 400.0, 1e4}) {
    for (const double spread : {0.3, 2.7, 6.0, 30.0}) {
      for (const int64_t seqlen_kv : {1, 20, 150, 600}) {
        Case c = base();
        c.softcap = softcap;
        c.spread = spread;
        c.seqlen_kv = seqlen_kv;
        c.window_right = seqlen_kv == 150 ? 0 : -1;
        SCOPED_TRACE(std::to_string(softcap) + " " + std::to_string(spread));
        run(c);
      }
    }
    for (const double mean : {-6.0, -25.0}) {  // all scores far below zero
      Case c = base();
      c.softcap = softcap;
      c.mean = mean;
      c.batch = c.heads_q = c.heads_kv = 1;
      c.seqlen_kv = 300;
      c.head_dim_qk = c.head_dim_v = 128;
      run(c);
      c.lse = false;
      run(c);
    }
  }
}

// GPUs have tiles of their own for head dims and long rows.
class GpuSoftcaps : public Forward {};
TEST_P(GpuSoftcaps, WithoutLse) {
  struct Size {
    int64_t head_dim, max_seqlen;
  };
  for (const Size size : {Size{32, 0}, {128, 0}, {128, 8192}, {256, 0}}) {
    // The ladder has the same tiles for all lengths, and a plan for 8192 keys would take half a GiB for its scores,
    // which each call fills twice.
    if (size.max_seqlen > 0 && !std::string_view(GetParam().name).starts_with("cuda.forward_")) continue;
    for (const double softcap : {4.0, 30.0, 400.0}) {
      const auto run_capped = [&](const std::function<void(Case&)>& change) {
        Case c = base();
        c.head_dim_qk = c.head_dim_v = size.head_dim;
        c.heads_q = c.heads_kv = 1;
        c.plan = size.max_seqlen > 0;
        c.max_seqlen = size.max_seqlen;
        c.softcap = softcap;
        c.lse = false;
        change(c);
        run(c);
      };
      for (const double spread : {0.3, 1.0, 2.0, 6.0, 30.0}) {
        run_capped([&](Case& c) { c.spread = spread, c.seqlen_kv = 5; });
        run_capped([&](Case& c) { c.spread = spread, c.seqlen_kv = 300; });
        run_capped([&](Case& c) { c.spread = spread, c.seqlen_kv = 150, c.window_right = 0; });
      }
      for (const double mean : {-6.0, -25.0}) {  // all scores far below zero
        run_capped([&](Case& c) { c.mean = mean, c.seqlen_kv = 300; });
        run_capped([&](Case& c) { c.mean = mean, c.seqlen_kv = 300, c.lse = true; });
      }
    }
  }
}

// In parts, as a GPU compiles a kernel or more a pair.
class PairsOfFeatures : public Forward {
 public:
  static constexpr size_t kParts = 4;

 protected:
  void run_part(size_t part);
};

void PairsOfFeatures::run_part(size_t part) {
  for (size_t a = part; a < features().size(); a += kParts) {
    for (size_t b = a + 1; b < features().size(); ++b) {
      Case c = base();
      c.batch = 2;
      c.heads_q = 2;
      c.heads_kv = 1;
      c.seqlen_q = 19;
      c.seqlen_kv = 35;
      c.seed = a * 100 + b;
      features()[a].apply(c);
      features()[b].apply(c);
      SCOPED_TRACE(std::string(features()[a].name) + " with " + features()[b].name);
      run(c);
    }
  }
}

static_assert(PairsOfFeatures::kParts == 4);
TEST_P(PairsOfFeatures, FirstPart) { run_part(0); }
TEST_P(PairsOfFeatures, SecondPart) { run_part(1); }
TEST_P(PairsOfFeatures, ThirdPart) { run_part(2); }
TEST_P(PairsOfFeatures, FourthPart) { run_part(3); }

TEST_P(Forward, Pages) {
  for (const int64_t page_size : {1, 2, 8, 24, 48, 64, 128, 256}) {
    Case c = base();
    c.batch = 3;
    c.heads_q = c.heads_kv = 1;
    c.page_size = page_size;
    c.seqlen_kv = 230;
    c.guard = true;
    run(c);
    c.layout = "bhsd";
    c.packed_q = c.seqlens_kv = true;
    c.window_right = 0;
    run(c);
  }
}

TEST_P(Forward, Layouts) {
  for (const char* layout : {"bshd", "bhsd", "sliced", "qkv"}) {
    for (const int64_t shift : {0, 1, 3, 8, 16, 31}) {
      Case c = base();
      c.seqlen_kv = c.seqlen_q;
      c.layout = layout;
      c.shift = shift;
      run(c);
    }
  }
}

TEST_P(Forward, OutputInFp32) {
  Case c = base();
  c.out_dtype = "f32";
  run(c);
}

TEST_P(Forward, OddSizes) {
  for (const int64_t seqlen_q : {1, 2, 15, 17, 33, 63, 65, 100}) {
    for (const int64_t seqlen_kv : {1, 2, 15, 31, 49, 64, 65, 130, 259}) {
      Case c = base();
      c.batch = 1;
      c.heads_q = 1;
      c.heads_kv = 1;
      c.seqlen_q = seqlen_q;
      c.seqlen_kv = seqlen_kv;
      c.window_right = seqlen_q % 2 == 0 ? 0 : -1;
      c.guard = true;
      run(c);
    }
  }
}

TEST_P(Forward, EmptySizes) {
  for (const auto& [batch, seqlen_q, seqlen_kv] :
       {std::tuple{0, 3, 3}, std::tuple{2, 0, 3}, std::tuple{2, 3, 0}, std::tuple{1, 0, 0}}) {
    for (const bool packed : {false, true}) {
      for (const bool sink : {false, true}) {
        Case c = base();
        c.batch = batch;
        c.seqlen_q = seqlen_q;
        c.seqlen_kv = seqlen_kv;
        c.packed_q = c.packed_kv = packed;
        c.sink = sink;
        run(c);
      }
    }
  }
}

TEST_P(Forward, RowsWithoutAKey) {
  Case c = base();
  c.seqlen_q = 70;  // longer than the keys: the first queries stand before them
  c.seqlen_kv = 20;
  c.window_right = 0;
  run(c);
  c.sink = true;
  run(c);
  c.chunk = 7;
  run(c);
}

TEST_P(Forward, HeadDims) {
  for (const auto& [qk, v] : {std::pair{1, 1},
                              {3, 3},
                              {8, 8},
                              {17, 17},
                              {32, 64},
                              {64, 32},
                              {80, 80},
                              {96, 96},
                              {128, 128},
                              {192, 128},
                              {1, 40},
                              {40, 1},
                              {256, 256},
                              {512, 512},
                              {576, 512}}) {
    Case c = base();
    c.batch = 1;
    c.heads_q = 2;
    c.heads_kv = 2;
    c.head_dim_qk = qk;
    c.head_dim_v = v;
    c.guard = true;
    run(c, std::max(qk, v) > GetParam().max_head_dim);
  }
}

TEST_P(Forward, GroupsOfHeads) {
  for (const auto& [heads_q, heads_kv] : {std::pair{1, 1}, {6, 6}, {6, 3}, {7, 1}, {16, 2}, {64, 1}, {30, 5}}) {
    Case c = base();
    c.batch = 1;
    c.heads_q = heads_q;
    c.heads_kv = heads_kv;
    c.window_right = 0;
    c.seqlen_q = 21;
    run(c);
    c.seqlen_q = 1;
    run(c);
  }
}

// A maximum that climbs now and then, and with every tile: each time what came before is rescaled.
TEST_P(Forward, GrowingScores) {
  Case c = base();
  c.seqlen_kv = 1000;
  for (const double spread : {4.0, 15.0, 60.0}) {
    c.spread = spread;
    run(c);
  }
  c.seqlen_kv = 400;
  c.alibi = "h";
  run(c);
  c.alibi = "";
  c.bias = "k";
  run(c);
}

// Dropout leaves only keys whose P a kernel takes for 0, and an out below the normal range of double. Its bound was
// once scaled by more than a double holds.
TEST_P(Forward, OutBelowDouble) {
  if (!GetParam().computes("f64")) GTEST_SKIP() << "computes in fp32";
  run(
      parse("dtype=f64 layout=qkv seqlen_q=127 seqlen_kv=127 head_dim_qk=80 head_dim_v=64 window_right=0 "
            "bias_mean=-0.844299640345838 scale=0.563860608967093 sink=1 dropout=0.99 spread=40 seed=1276000014762"));
}

TEST_P(Forward, LongerThanAnyTile) {
  Case c = base();
  c.batch = 1;
  c.heads_q = 2;
  c.heads_kv = 1;
  c.seqlen_q = 300;
  c.seqlen_kv = 1100;
  c.window_right = 0;
  run(c);
}

// Slots past a length, in left padding and in gaps are NaN in every case of these suites; here also the keys inside a
// sequence that no query sees.
TEST_P(Forward, NaNInKeysThatNoQuerySees) {
  Case c = base();
  c.masked_nan = true;
  c.seqlen_q = 20;
  c.seqlen_kv = 150;
  c.causal_top_left = true;
  run(c);
  c.causal_top_left = false;
  c.window_left = 10;
  run(c);
  c.keep_first = 2;
  run(c);
  for (const char* mask : kBandsWithHoles) run(parse("batch=2 heads_q=4 heads_kv=2 masked_nan=1 " + std::string(mask)));
}

// Their pages are -1 in the table, and page 0 holds NaN: a tile of keys may begin in one of them.
TEST_P(Forward, EvictedPages) {
  for (const char* mask : {"window_left=10", "window_left=10 window_right=0 keep_first=2", "chunk=32",
                           "causal_top_left=1", "window_left=10 window_right=0 seqlens_q=1 seqlens_kv=1",
                           "window_left=5 window_right=0 leftpad_kv=1 alibi=h"}) {
    for (const int64_t page_size : {1, 3, 16}) {
      Case c = parse("batch=3 heads_q=4 heads_kv=2 masked_nan=1 head_dim_qk=32 head_dim_v=32 " + std::string(mask));
      c.page_size = page_size;
      for (const int64_t seqlen_q : {1, 20}) {
        c.seqlen_q = seqlen_q;
        c.seqlen_kv = 150;
        run(c);
      }
    }
  }
}

// Their out is 0 and their LSE that of the sink alone, whatever their q holds.
TEST_P(Forward, NaNInQueriesThatSeeNoKey) {
  for (const bool sink : {false, true}) {
    for (const char* mask :
         {"window_right=0 seqlen_q=70 seqlen_kv=40", "causal_top_left=1 window_left=3 seqlen_q=40", kBandsWithHoles[0],
          kBandsWithHoles[1], "document=1 mask_region=10 seqlen_q=90 seqlen_kv=60", "dense=bhqk", "seqlens_kv=1",
          "block_map=hqk block_q=3 block_kv=5"}) {
      Case c =
          parse("batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim_qk=16 head_dim_v=16 masked_nan=1 " +
                std::string(mask));
      c.lse = true;
      c.sink = sink;
      run(c);
    }
  }
}

// More heads and sequences than an axis of a GPU's grid holds.
TEST_P(Forward, BeyondTwoToThe16HeadsAndSequences) {
  for (const auto& [batch, heads] : {std::pair{66'000, 1}, {1, 66'000}, {300, 220}}) {
    Case c = base();
    c.batch = batch;
    c.heads_q = heads;
    c.heads_kv = heads > 1 ? heads / 2 : 1;
    c.seqlen_q = 2;
    c.seqlen_kv = 3;
    c.kernel = GetParam().name;
    c.batch_invariant = c.few = GetParam().is_for_few();
    c.dtype = GetParam().computes("bf16") ? "bf16" : "f32";
    run_as_given(c);
  }
}

// Rows 2^28 elements apart in two sequences, of ten queries each and then of eleven keys: strides above 2^31, offsets
// above 2^32. In turn, as a case's tensors take 52 GB of fp32 on a GPU; on a CPU pages between rows are never touched.
TEST_P(Forward, BeyondTwoToThe31Elements) {
  Case c = base();
  c.layout = "huge";
  c.heads_q = c.heads_kv = 1;
  c.seqlen_q = 10;
  c.seqlen_kv = 2;
  run(c);
  c.seqlen_q = 2;
  c.seqlen_kv = 11;
  run(c);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuSoftcaps);  // in builds without CUDA
INSTANTIATE_TEST_SUITE_P(Kernels, Forward, testing::ValuesIn(kernels_of("forward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Softcaps, testing::ValuesIn(fast_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, GpuSoftcaps, testing::ValuesIn(gpu_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, PairsOfFeatures, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

TEST(ForwardChoice, AutomaticRunsEveryDtype) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    const Case c{.dtype = dtype,
                 .batch = 2,
                 .heads_q = 4,
                 .heads_kv = 2,
                 .seqlen_q = 70,
                 .seqlen_kv = 70,
                 .head_dim_qk = 64,
                 .head_dim_v = 64,
                 .window_right = 0,
                 .seed = 3};
    const Outcome outcome = run_case(c);
    EXPECT_EQ(outcome.verdict, Verdict::passed) << to_string(c) << "\n" << outcome.message;
  }
}

}  // namespace
}  // namespace tessella::tests
