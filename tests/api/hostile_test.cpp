// Tables in a GPU's memory may hold anything: no value makes a kernel hang, write outside of its outputs or, under
// compute-sanitizer, read outside of the tensors. What it computes of them does not matter.
#include <gtest/gtest.h>

#include "cases/backward_call.hpp"
#include "cases/backward_features.hpp"
#include "cases/call.hpp"
#include "cases/gpu_kernels.hpp"
#include "cases/hostile_tables.hpp"

namespace tessella::tests {
namespace {

class Hostile : public EachKernel {
 protected:
  // Runs with every value of these tables drawn anew, from far outside of what they may be to just beyond it.
  void run(Case c) {
    c.kernel = GetParam().name;
    c.dtype = GetParam().computes("bf16") ? "bf16" : "f32";
    for (const bool guard : {false, true}) {
      for (uint64_t seed = 0; seed < 8; ++seed) {
        c.guard = guard;
        c.seed = seed;
        c.plan = seed % 2 == 0;
        if (is_backward()) {
          BackwardCall call(with_feature(to_string(c), "d_lse=1"));
          run(call, *call.args().forward, c);
        } else {
          Call call(c);
          run(call, call.args(), c);
        }
      }
    }
  }
  bool is_backward() const { return GetParam().operation == "backward"; }
  bool decodes() const { return GetParam().name.starts_with("cuda.decode"); }

  Case base() const {
    return {.batch = 4,
            .heads_q = 4,
            .heads_kv = 2,
            .seqlen_q = decodes() ? 8 : 70,
            .seqlen_kv = 90,
            .head_dim_qk = 32,
            .head_dim_v = 32,
            .window_right = 0,
            .sink = true};
  }

 private:
  template <class AnyCall>
  static void run(AnyCall& call, const tessella_forward_args& args, const Case& c) {
    const HostileTables spoiled(args, c.seed);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.spoiled(), "") << to_string(c);
  }
};

TEST_P(Hostile, Lengths) {
  Case c = base();
  c.seqlens_q = c.seqlens_kv = true;
  run(c);
  c.leftpad_kv = true;
  run(c);
}

TEST_P(Hostile, PackedOffsets) {
  Case c = base();
  c.packed_q = c.packed_kv = true;
  run(c);
  c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true;
  run(c);
  c.packed_q = false;
  run(c);
}

// Of several tiles of keys, of which backward's blocks wait for each other.
TEST_P(Hostile, LongPackedOffsets) {
  if (decodes()) GTEST_SKIP() << "decode is for few queries";
  Case c = base();
  c.seqlen_q = c.seqlen_kv = 600;
  c.packed_q = true;
  run(c);
  c.window_left = 150;
  run(c);
}

TEST_P(Hostile, Pages) {
  if (is_backward()) GTEST_SKIP() << "backward has no pages";
  Case c = base();
  c.page_size = 16;
  run(c);
  c.seqlens_kv = true;
  run(c);
  c.packed_q = true;
  run(c);
  c.keep_first = 3;
  c.window_left = 20;
  run(c);
  if (decodes()) return;
  c.dense = "bhqk";
  run(c);
}

TEST_P(Hostile, SlotsAndDrafts) {
  if (is_backward()) GTEST_SKIP() << "backward has neither";
  Case c = base();
  c.cache_batch_idx = true;
  run(c);
  c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true;
  run(c);
  c.draft_mask = "b";
  run(c);
  c.cache_batch_idx = false;
  c.packed_q = c.packed_kv = true;
  run(c);
}

TEST_P(Hostile, Prefixes) {
  Case c = base();
  c.prefix = true;
  run(c);
  c.window_left = 7;
  c.keep_first = 3;
  c.packed_q = c.packed_kv = true;
  run(c);
}

TEST_P(Hostile, BesideMasksAndBias) {
  if (decodes()) GTEST_SKIP() << "decode has neither";
  Case c = base();
  c.seqlens_q = c.seqlens_kv = c.leftpad_kv = true;
  c.bias = "bhqk";
  run(c);
  c.document = true;
  c.dense = "bhqk";
  run(c);
  c.packed_q = c.packed_kv = true;
  run(c);
  c.block_map = "bhqk";
  c.block_q = 16;
  c.block_kv = 24;
  run(c);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Hostile);
INSTANTIATE_TEST_SUITE_P(Kernels, Hostile, testing::ValuesIn(gpu_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(DecodeKernels, Hostile, testing::ValuesIn(gpu_kernels("decode")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(BackwardKernels, Hostile, testing::ValuesIn(gpu_kernels("backward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
