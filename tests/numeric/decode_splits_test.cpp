// The CPU's kernels of few queries where keys are split: at the borders of splits, and with several threads, which take
// pieces of a unit and merge them.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "cases/call.hpp"
#include "cases/kernels.hpp"
#include "cases/part.hpp"

namespace tessella::tests {
namespace {

constexpr int64_t kSplit = 1024;  // of two bytes and heads of 128 columns

class DecodeSplits : public EachKernel {
 protected:
  Case base() const {
    return {.kernel = GetParam().name,
            .dtype = "bf16",
            .heads_q = 2,
            .heads_kv = 1,
            .seqlen_q = 1,
            .seqlen_kv = kSplit,
            .head_dim_qk = 128,
            .head_dim_v = 128,
            .guard = true,
            .masked_nan = true,
            .seed = 11};
  }
  // Right with one thread, and the same bits with any number of them.
  void run(Case c) {
    std::vector<std::byte> one;
    for (const int64_t threads : {1, 2, 3, 7}) {
      c.threads = threads;
      Call call(c);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      if (threads == 1) {
        EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
        one = call.results();
      }
      EXPECT_EQ(call.results(), one) << "--case \"" << to_string(c) << "\"";
    }
  }
};

TEST_P(DecodeSplits, KeysAtTheirBorders) {
  for (const int64_t splits : {1, 2, 5}) {
    for (const int64_t beyond : {-257, -1, 0, 1, 65}) {
      Case c = base();
      c.seqlen_kv = splits * kSplit + beyond;
      run(c);
      c.window_right = 0;
      c.seqlen_q = 3;
      run(c);
    }
  }
}

TEST_P(DecodeSplits, RowsOfAnyNumber) {
  for (const int64_t heads : {1, 2, 3, 4, 5, 7, 8, 16, 47, 48, 49, 64}) {
    Case c = base();
    c.heads_q = heads;
    c.batch_invariant = c.few = heads > 12;  // beyond what it takes unasked beside AMX
    c.seqlen_kv = 2 * kSplit + 100;
    run(c);
  }
}

// Heads beside each other, which one unit has, as far as rows of all of them are few, and one after the other.
TEST_P(DecodeSplits, HeadsOfAUnit) {
  for (const char* layout : {"bshd", "bhsd", "sliced"}) {
    for (const int64_t heads_kv : {2, 7, 40}) {
      for (const int64_t queries : {1, 6}) {
        Case c = base();
        c.layout = layout;
        c.batch = 2;
        c.heads_kv = heads_kv;
        c.heads_q = 2 * heads_kv;
        c.seqlen_q = queries;
        c.seqlen_kv = 300;
        c.head_dim_qk = c.head_dim_v = 64;
        c.seqlens_q = c.seqlens_kv = queries > 1;
        c.window_right = 0;
        c.dtype = queries > 1 ? "f32" : "bf16";
        run(c);
      }
    }
  }
}

// Of every width, with one piece of several splits and pieces that hold none that are seen.
TEST_P(DecodeSplits, Windows) {
  for (const int64_t keep_first : {0, 3, 1200}) {
    for (const int64_t left : {0, 100, 1023, 2100, 6000}) {
      Case c = base();
      c.seqlen_q = 5;
      c.seqlen_kv = 7 * kSplit + 30;
      c.window_left = left;
      c.window_right = 0;
      c.keep_first = keep_first;
      run(c);
    }
  }
}

TEST_P(DecodeSplits, EachChain) {
  const auto with = [&](auto&& change) {
    Case c = base();
    c.heads_q = 3;
    c.seqlen_q = 2;
    c.seqlen_kv = 3 * kSplit + 7;
    c.window_right = 0;
    change(c);
    run(c);
  };
  with([](Case& c) { c.alibi = "h"; });
  with([](Case& c) { c.softcap = 4, c.spread = 9; });
  with([](Case& c) { c.bias = "bhqk"; });
  with([](Case& c) { c.dense = "qk"; });
  with([](Case& c) { c.block_map = "hqk", c.block_q = 2, c.block_kv = 64; });
  with([](Case& c) { c.dropout = 0.2; });
  with([](Case& c) { c.sink = true; });
  with([](Case& c) { c.spread = 60; });
  with([](Case& c) { c.page_size = 16, c.kv_dtype = "i8", c.kv_scale = "th"; });
}

// MLA's shape: one KV head, and more rows than a query tile has; v is the first columns of k.
TEST_P(DecodeSplits, MultiHeadLatentAttention) {
  for (const int64_t heads : {16, 64}) {
    Case c = base();
    c.heads_q = heads;
    c.head_dim_qk = 576;
    c.head_dim_v = 512;
    c.v_in_k = true;
    c.seqlen_kv = 1300;
    run(c);
    c.kv_dtype = "f8e4m3fn";
    c.kv_scale = "1";
    run(c);
  }
}

// A row has its bits whatever the rows beside it see, though these decide which splits there are.
TEST_P(DecodeSplits, BitsDoNotDependOnTheRowsBeside) {
  for (const int64_t left : {-1, 40, 1500}) {
    Case c = base();
    c.seqlen_q = 230;
    c.seqlen_kv = 3 * kSplit;
    c.head_dim_qk = c.head_dim_v = 128;
    c.window_left = left;
    c.window_right = 0;
    c.keep_first = left >= 0 ? 2 : 0;
    c.batch_invariant = c.few = true;
    c.guard = c.masked_nan = false;
    c.threads = 2;
    const auto run_part = [](Call& call, const Case&) {
      return std::string(call.run_plain() == TESSELLA_OK ? "" : tessella_last_error());
    };
    EXPECT_EQ(check_parts({c}, run_part), "") << "--case \"" << to_string(c) << "\"";
  }
}

std::vector<KernelInfo> decode_kernels() {
  std::vector<KernelInfo> kernels = kernels_of("forward");
  std::erase_if(kernels, [](const KernelInfo& kernel) { return !kernel.is_for_few(); });
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecodeSplits, testing::ValuesIn(decode_kernels()), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
