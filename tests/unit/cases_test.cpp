// Cases survive the way into a line and back, and the machinery around a call notices what it is there to notice.
#include "cases/cases.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "cases/call.hpp"

namespace tessella::tests {
namespace {

TEST(Cases, SurviveTheirLine) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const std::string line = to_string(random_case(seed, "some.kernel", "f32 bf16 f16 f64"));
    ASSERT_EQ(to_string(parse(line)), line);
  }
}

TEST(Cases, NumbersSurviveToTheLastDigit) {
  const Case c{.bias_mean = -1e-17, .scale = 0.1, .softcap = 1.0 / 3, .dropout = 0.9999999, .spread = 1e300, .mean = 7};
  const Case again = parse(to_string(c));
  EXPECT_EQ(to_string(Case{.dropout = 0.9999999}), "dropout=0.9999999");
  for (double Case::*member :
       {&Case::bias_mean, &Case::scale, &Case::softcap, &Case::dropout, &Case::spread, &Case::mean}) {
    EXPECT_EQ(again.*member, c.*member);
  }
}

TEST(Cases, DefaultsAreLeftOut) {
  EXPECT_EQ(to_string(Case{}), "");
  EXPECT_EQ(to_string(Case{.seqlen_q = 5, .window_right = 0}), "seqlen_q=5 window_right=0");
}

TEST(Cases, UnknownFieldsAreErrors) {
  EXPECT_THROW(parse("seqlen=5"), std::invalid_argument);
  EXPECT_THROW(parse("seqlen_q"), std::invalid_argument);
  EXPECT_THROW(parse("seqlen_q=many"), std::invalid_argument);
}

TEST(Cases, RandomOnesReachEveryFeature) {
  std::string lines;
  for (uint64_t seed = 0; seed < 3000; ++seed) lines += " " + to_string(random_case(seed, "", "bf16"));
  for (const char* field :
       {"out_dtype",   "layout=bhsd", "layout=sliced", "layout=qkv",     "shift",           "batch=0",
        "seqlen_q=0",  "seqlen_kv=0", "packed_q",      "packed_kv",      "seqlens_q",       "seqlens_kv",
        "leftpad_kv",  "page_size",   "window_left",   "window_right=0", "causal_top_left", "chunk",
        "keep_first",  "prefix",      "document",      "dense",          "block_map",       "bias",
        "bias_f32=0",  "alibi=h",     "alibi=bh",      "scale",          "softcap",         "sink",
        "dropout",     "spread",      "mean",          "lse=0",          "threads",         "plan",
        "memory_seed", "guard",       "draft_mask=b",  "draft_mask=1",   "cache_batch_idx", "score_order=bhkq"}) {
    EXPECT_NE(lines.find(std::string(" ") + field), std::string::npos) << field;
  }
}

TEST(Cases, RandomOnesOfCpusReachMasksOfRegions) {
  std::string lines;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    for (const Case& c :
         {random_case(seed, "cpu.forward_avx2", "f32"), random_decode_case(seed, "cpu.decode_avx2", "f32")}) {
      if (c.mask_region > 0) lines += " " + to_string(c) + " ";
    }
  }
  for (const char* field : {"dense=bhqk ", "dense=k ", "block_map=hk ", "block_q=1", "document", "packed_q",
                            "packed_kv", "seqlens_kv", "leftpad_kv", "page_size", "keep_first", "prefix", "chunk",
                            "window_left", "bias", "draft_mask", "masked_nan", "score_order=kqhb"}) {
    EXPECT_NE(lines.find(std::string(" ") + field), std::string::npos) << field;
  }
}

TEST(Cases, RandomDecodingReachesEveryFeature) {
  std::string lines;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Case c = random_decode_case(seed, "cuda.decode", "bf16 f16 f32");
    ASSERT_EQ(to_string(parse(to_string(c))), to_string(c));
    const int64_t rows = c.seqlen_q * c.heads_q / c.heads_kv;
    ASSERT_TRUE((rows >= 1 && rows <= 64) || c.few) << to_string(c);
    ASSERT_TRUE(c.seqlen_kv <= 3000 && c.num_splits <= 20) << to_string(c);
    lines += " " + to_string(c) + " ";
  }
  for (const char* field :
       {"dtype=bf16",    "dtype=f16",       "layout=bhsd",    "layout=gaps",  "shift",          "batch=0",
        "packed_q",      "packed_kv",       "seqlens_q",      "seqlens_kv",   "leftpad_kv",     "cache_batch_idx",
        "page_size=1 ",  "page_size=7 ",    "page_size=256 ", "window_left",  "window_right=0", "causal_top_left",
        "chunk",         "keep_first",      "prefix",         "draft_mask=b", "draft_mask=1",   "alibi=h",
        "alibi=bh",      "scale=-0.25",     "softcap",        "sink",         "spread=40",      "lse=0",
        "out_dtype=f32", "num_splits=1 ",   "num_splits=20 ", "few=1",        "masked_nan",     "seqlen_q=1 ",
        "seqlen_q=16 ",  "head_dim_qk=256 "}) {
    EXPECT_NE(lines.find(std::string(" ") + field), std::string::npos) << field;
  }
}

Case small() {
  return {
      .kernel = "reference.attention", .layout = "sliced", .heads_q = 2, .heads_kv = 2, .seqlen_q = 3, .plan = true};
}

TEST(Call, NoticesAWrongElementAndAWriteIntoAGap) {
  Call call(small());
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  EXPECT_EQ(call.check(), "");
  auto* out = static_cast<float*>(call.args().out->data);
  const float right = out[0];
  out[0] += 1e-3f;
  EXPECT_NE(call.check().find("out[0, row 0, head 0, 0]"), std::string::npos);
  out[0] = right;
  EXPECT_EQ(call.check(), "");
  out[8] = 0;  // between the heads
  EXPECT_NE(call.check().find("wrote outside of out"), std::string::npos);
}

TEST(Call, OutputsStartAsNaN) {
  Call call(small());
  EXPECT_NE(call.check().find("nan, expected"), std::string::npos);
}

}  // namespace
}  // namespace tessella::tests
